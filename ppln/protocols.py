"""The numbers of the three protocols, on which data, networks and tasks agree."""

# Deblurring, as on HQF: a blurry frame is the mean of so many sharp ones, evenly spaced, and the events are
# counted between each two of them.
BINS = 13
FRAMES = BINS + 1

# Steering, as on DDD20: rows of a sample, each a frame, an event frame and an angle.
ROWS = 10

# Pose, as on DHP19: cameras that are used, by its numbers; event frames of a sample; joints of a person.
CAMERAS = (2, 3)
EVENT_FRAMES = 10
# In the order of labels and heat maps; bones are numbers of joints.
JOINT_NAMES = (
    *("head", "right shoulder", "left shoulder", "right elbow", "left elbow", "right hip", "left hip"),
    *("right hand", "left hand", "right knee", "left knee", "right foot", "left foot"),
)
JOINTS = len(JOINT_NAMES)
CONFIDENCE = 0.3  # the maximum of a heat map above which a joint is sure
BONES = (
    *((1, 2), (1, 3), (3, 7), (2, 4), (4, 8), (1, 5), (2, 6), (5, 6)),
    *((5, 9), (9, 11), (6, 10), (10, 12)),
)
