"""rlx.audio against librosa and the feature extractor of transformers, Whisper models against transformers."""

import importlib
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

import rlx  # noqa: E402
from rlx import audio  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

RNG = np.random.default_rng(2)


def recording(seconds):
    """A gliding tone that comes and goes, in noise."""
    time = np.arange(int(16000 * seconds)) / 16000
    tone = np.sin(2 * np.pi * (200 + 50 * np.sin(time)) * time) * (np.sin(3 * time) > 0)
    return (0.3 * tone + 0.05 * RNG.standard_normal(len(time))).astype("f4")


@pytest.mark.parametrize("n_mels", [80, 128])
def test_features_of_a_window_are_those_of_transformers(n_mels):
    x = recording(12)
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels)
    wanted = extractor(x, sampling_rate=16000, return_tensors="np").input_features[0]
    got = rlx.jit(lambda x: audio.whisper_log_mel(x, n_mels))(np.pad(x, (0, 480000 - len(x))))
    got = np.asarray(got)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(np.pad(x, (0, 480000 - len(x))), 200, "reflect"), 400)
    power = abs(np.fft.rfft(frames[:-1:160] * np.hanning(401)[:-1])) ** 2
    v = np.log10(np.maximum(power @ audio.mel_filters(16000, 400, n_mels).T.astype("f8"), 1e-10)).T
    exact = (np.maximum(v, v.max() - 8) + 4) / 4
    # Both are computed in f32, which in a few bands beside a tone has no more digits than this.
    assert np.mean(abs(got - wanted) > 1e-5) < 1e-4
    assert abs(got - exact).max() < 2e-5


def test_spectra_and_cepstra_are_those_of_librosa():
    librosa = pytest.importorskip("librosa")
    x = recording(2)
    for options in ({}, {"htk": True, "norm": None}):
        wanted = librosa.filters.mel(sr=16000, n_fft=512, n_mels=40, **options)
        names = {"scale": "htk", "norm": None} if options else {}
        np.testing.assert_allclose(audio.mel_filters(16000, 512, 40, **names), wanted, atol=1e-8)
    np.testing.assert_allclose(audio.stft(x, 1024), librosa.stft(x, n_fft=1024, pad_mode="reflect"), atol=2e-5)
    wanted = librosa.feature.mfcc(y=x, sr=16000, n_mfcc=13, pad_mode="reflect")
    np.testing.assert_allclose(audio.mfcc(x, 16000, 13), wanted, atol=2e-3)
    spectrum = librosa.stft(x, n_fft=512, hop_length=100)
    back = librosa.istft(spectrum, hop_length=100, length=len(x))
    np.testing.assert_allclose(audio.istft(spectrum, 100, length=len(x)), back, atol=2e-6)


SIZES = {
    "vocab_size": 120,
    "num_mel_bins": 80,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 56,
    "max_source_positions": 50,
    "max_target_positions": 30,
    "decoder_start_token_id": 100,
    "eos_token_id": 101,
    "pad_token_id": 101,
    "bos_token_id": 101,
    "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [3, 101],
}


def saved_model(folder, **changes):
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES | changes)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * noise
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
    generation = model.generation_config
    generation.lang_to_id = {"<|en|>": 102, "<|de|>": 103}
    generation.task_to_id = {"transcribe": 104, "translate": 105}
    generation.no_timestamps_token_id, generation.is_multilingual = 106, True
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("changes", [{}, {"activation_function": "gelu_new", "num_mel_bins": 128}])
def test_whisper_models_are_those_of_transformers(changes, tmp_path):
    from rlx.models.speech_model import _Decoding

    model = saved_model(tmp_path, **changes)
    loaded = rlx.load_speech(tmp_path)
    mels = changes.get("num_mel_bins", 80)
    features = RNG.standard_normal((2, mels, 100)).astype("f4")
    tokens = np.array([[100, 102, 104, 106, 5, 9], [100, 103, 105, 106, 7, 3]], np.int32)
    with torch.no_grad():
        hidden = model.model.encoder(torch.tensor(features)).last_hidden_state.numpy()
        logits = model(torch.tensor(features), decoder_input_ids=torch.tensor(tokens).long()).logits.numpy()
    np.testing.assert_allclose(loaded.hidden_states(features), hidden, atol=1e-5)
    decoding = _Decoding(loaded, loaded.encode(features))
    for start, end in ((0, 4), (4, 5), (5, 6)):
        np.testing.assert_allclose(decoding.extend(tokens[:, start:end]), logits[:, end - 1], atol=1e-5)


def test_greedy_texts_are_those_of_transformers(tmp_path):
    model = saved_model(tmp_path)
    loaded = rlx.load_speech(tmp_path)
    features = RNG.standard_normal((3, 80, 100)).astype("f4")
    with torch.no_grad():
        wanted = model.generate(
            torch.tensor(features), language="de", task="transcribe", max_new_tokens=20, do_sample=False, num_beams=1
        )
    got = loaded._written(loaded.encode(features), loaded._prompt("de", "transcribe"))
    for row, ids in zip(wanted.tolist(), got):
        answer = [t for t in row if t != 101]
        answer = answer[4:] if answer[:1] == [100] else answer
        assert ids[: len(answer)] == answer and len(answer) > 0


def test_trustworthiness_of_a_map_is_that_of_scikit_learn(monkeypatch):
    manifold = pytest.importorskip("sklearn.manifold")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent / "examples"))
    umap = importlib.import_module("umap_digits")
    x, _ = umap.drawn_digits(300)
    for y in (umap.first_map(x), RNG.standard_normal((300, 2)).astype("f4")):
        wanted = manifold.trustworthiness(x, y, n_neighbors=15)
        assert abs(umap.trustworthiness(x, y) - wanted) < 1e-4
