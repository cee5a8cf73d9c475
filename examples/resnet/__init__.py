"""ResNet-50 on generated images: how fast the loop feeds a large module."""
