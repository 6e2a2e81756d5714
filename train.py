"""python train.py --config configs/reverse.yaml [--section.key value ...]: the same as `minitx train`."""

import sys

from minitx.cli.main import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
