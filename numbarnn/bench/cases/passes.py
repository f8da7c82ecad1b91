"""What a row of `numbarnn bench` times of a layer, by its name in records."""

FORWARD, TRAINING = "forward", "forward+backward"
STEP = "one step"

WHOLE = (FORWARD, TRAINING)  # what a usual case has rows of
SHORT = {FORWARD: "fwd", TRAINING: "fwd+bwd", STEP: "step"}  # in tables
