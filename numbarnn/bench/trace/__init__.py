"""`numbarnn trace`: what every block of a kernel did and when, as a page that plays it."""
