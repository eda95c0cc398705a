"""Networks for deblurring, steering and pose: model(x, t), or by name with `create_model`."""

from ppln.models.pose import PoseCalabrese, PoseCalabreseMod, PosePPLN
from ppln.models.steering import SteeringHu, SteeringHuMod, SteeringPPLN
from ppln.models.unet import DeblurPPLN, DeblurUNet, DeblurUNet14, DeblurUNetT
from ppln.models.weights import Card
from ppln.models.zoo import card, create_model, list_models, load_released

__all__ = [
    "Card",
    "DeblurPPLN",
    "DeblurUNet",
    "DeblurUNet14",
    "DeblurUNetT",
    "PoseCalabrese",
    "PoseCalabreseMod",
    "PosePPLN",
    "SteeringHu",
    "SteeringHuMod",
    "SteeringPPLN",
    "card",
    "create_model",
    "list_models",
    "load_released",
]
