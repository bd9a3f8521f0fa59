"""kekzl/imp#722."""
