"""Real model families: configs, graphs, weights, tokenisation, generation and embeddings.

`rlx.load` gives a `LanguageModel`, `rlx.load_encoder` a `TextEncoder`, `rlx.load_classifier` a `TextClassifier`,
`rlx.load_seq2seq` a `Seq2SeqModel`, `rlx.load_speech` a `SpeechModel`. Modules are imported on first use.
"""
