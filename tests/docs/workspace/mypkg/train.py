"""A program that is run as a module."""

import argparse

from mypkg.models import build

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
model, inputs = build()
model(*inputs).sum().backward()
