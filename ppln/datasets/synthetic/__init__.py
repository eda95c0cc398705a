"""Data made by the package itself: scenes for deblurring, and the textures they are made of."""
