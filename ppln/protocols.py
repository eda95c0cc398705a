"""The numbers of the three protocols, on which data, networks and tasks agree."""

# Deblurring, as on HQF: a blurry frame is the mean of so many sharp ones, evenly spaced, and the events are
# counted between each two of them.
BINS = 13
FRAMES = BINS + 1

# Steering, as on DDD20: rows of a sample, each a frame, an event frame and an angle.
ROWS = 10

# Pose, as on DHP19: event frames of a sample, and joints of a person.
EVENT_FRAMES = 10
JOINTS = 13
