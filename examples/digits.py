"""Asks the model `digits` over HTTP and over gRPC, by NVIDIA's client, and shows who answered.

python examples/digits.py [--http 127.0.0.1:8080] [--grpc 127.0.0.1:8081]
"""

import argparse

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

TWO = """
..#####.
.##..##.
.....##.
....##..
...##...
..##....
.##..##.
.######.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:8080", help="host:port of the gateway")
    parser.add_argument("--grpc", default="127.0.0.1:8081", help="host:port of the gateway's gRPC")
    options = parser.parse_args()
    rows = [[float(dot == "#") for dot in line] for line in TWO.split()]
    image = np.array(rows, np.float32).reshape(1, 1, 8, 8)  # [batch, channel, height, width], 0 to 1

    with over_http.InferenceServerClient(options.http) as client:
        tensor = over_http.InferInput("image", image.shape, "FP32")
        tensor.set_data_from_numpy(image)
        answer = client.infer("digits", [tensor])
        print("HTTP:", answer.as_numpy("probabilities").argmax(), "by", answer.get_response()["model_name"])

    with over_grpc.InferenceServerClient(options.grpc) as client:
        tensor = over_grpc.InferInput("image", image.shape, "FP32")
        tensor.set_data_from_numpy(image)
        answer = client.infer("digits", [tensor])
        print("gRPC:", answer.as_numpy("probabilities").argmax(), "by", answer.get_response().model_name)


if __name__ == "__main__":
    main()
