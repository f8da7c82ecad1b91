"""`numbarnn trace`: what every block of a kernel did and when, as an animated page."""
