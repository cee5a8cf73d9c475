"""Residual networks with bottlenecks, ResNet-50 among them.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition" (CVPR 2016); the stride of a block is in its 3x3
convolution, as in the variant known as 1.5. The last norm of every block starts at zero, so that blocks start as
identities (Goyal et al. 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to their input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        last_norm = nn.BatchNorm2d(outputs)
        nn.init.zeros_(last_norm.weight)
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            last_norm,
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        """float32 ``[N, inputs, H, W]`` -> ``[N, 4 * width, H / stride, W / stride]``."""
        output: Tensor = (self.layers(images) + self.shortcut(images)).relu()
        return output


class ResNet(nn.Module):
    """Images to logits.

    Args:
        blocks: Blocks of each of the four stages; (3, 4, 6, 3) is ResNet-50.
        classes: Number of logits.
    """

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(count):
                layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
                inputs = width * EXPANSION
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.logits = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """float32 ``[N, 3, H, W]`` -> logits ``[N, classes]``."""
        logits: Tensor = self.logits(self.features(images))
        return logits
