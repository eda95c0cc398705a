"""Drives for steering: a road behind a windscreen, and the angle of the wheel."""

from ppln.datasets.synthetic.driving.driving import Driving

__all__ = ["Driving"]
