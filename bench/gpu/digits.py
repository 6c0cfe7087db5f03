"""Small data in MNIST's format, so that programs on it run where there is none: digits.py FOLDER. Noise with a bright
row, at a height that the class decides."""

import os
import random
import struct
import sys


def write(path, sizes, values):
    with open(path, "wb") as file:
        file.write(struct.pack(f">{1 + len(sizes)}I", 0x0800 + len(sizes), *sizes) + bytes(values))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for part, count in (("train", 1000), ("t10k", 200)):
        draw = random.Random(count)
        classes = [draw.randrange(10) for _ in range(count)]
        pixels = (draw.randrange(200, 250) if p // 56 == digit + 2 else draw.randrange(60)
                  for digit in classes for p in range(28 * 28))
        write(f"{folder}/{part}-images-idx3-ubyte", (count, 28, 28), pixels)
        write(f"{folder}/{part}-labels-idx1-ubyte", (count,), classes)


main(*sys.argv[1:])
