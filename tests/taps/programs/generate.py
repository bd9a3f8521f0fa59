"""Generates a few tokens from a prompt, after a warm-up call."""

import argparse

import torch

from dumpcmp import demo


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", default="hi")
    parser.add_argument("--tokens", type=int, default=4)
    options = parser.parse_args()
    model, _ = demo.build()
    prompt = torch.tensor([[ord(letter) % 64 for letter in options.prompt]])
    print("generated", *demo.generate(model, options.tokens, prompt))


if __name__ == "__main__":
    main()
