"""Which of the texts is the nearest in meaning? An embedder behind the `openai` package, unchanged.

python examples/similar_texts.py [--url http://127.0.0.1:8080] [--model minilm] [TEXT TEXT…]
"""

import argparse

import openai

TEXTS = ["The harbour was quiet.", "Prices rose again.", "Boats lay still in the port."]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the gateway")
    parser.add_argument("--model", default="minilm", help="an embedder that is served")
    parser.add_argument("--key", default="any", help="an API key, where the gateway has keys")
    parser.add_argument("texts", nargs="*", default=TEXTS, help="the first is compared with the others")
    options = parser.parse_args()
    with openai.OpenAI(base_url=f"{options.url}/v1", api_key=options.key) as client:
        answer = client.embeddings.create(model=options.model, input=options.texts)
    first, *others = [entry.embedding for entry in answer.data]  # vectors of length 1
    cosines = [sum(a * b for a, b in zip(first, other, strict=True)) for other in others]
    for cosine, text in sorted(zip(cosines, options.texts[1:], strict=True), reverse=True):
        print(f"{cosine:+.3f}  {text}")


if __name__ == "__main__":
    main()
