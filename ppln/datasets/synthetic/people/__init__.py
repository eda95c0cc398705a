"""People for pose: bodies that move before the four cameras of DHP19."""

from ppln.datasets.synthetic.people.people import People

__all__ = ["People"]
