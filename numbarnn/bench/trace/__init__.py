"""`numbarnn trace`: what every block of a kernel did and when, as a page that plays it.

record      the record of a pass, as data and as JSON: the same from a simulator, a plan, or a device's clock
simulated   a persistent kernel, watched in the simulator
launches    the launches of a plan, for schedules that wait between kernels and not within
page        a record as one page, of `page.html`, `player.css` and `player.js`
command     the command line
"""
