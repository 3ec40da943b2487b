"""Real model families: configs, graphs, weights, tokenisation, generation and embeddings.

`rlx.load` gives a `LanguageModel`, `rlx.load_encoder` a `TextEncoder`. Modules are imported on first use.
"""
