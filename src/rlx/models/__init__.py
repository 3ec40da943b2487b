"""Real model families: configs, graphs, weights, tokenisation, generation and embeddings.

`rlx.load` gives a `LanguageModel`, `rlx.load_encoder` a `TextEncoder`, `rlx.load_classifier` a `TextClassifier`. Modules
are imported on first use.
"""
