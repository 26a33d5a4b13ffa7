# Asks the service a question as a client would; fails where it does not answer.
import os
import sys

import httpx

key = os.environ.get("API_KEY")
headers = {"Authorization": f"Bearer {key}"} if key else {}
question = {
    "model": os.environ["MODEL"],
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 8,
}
with httpx.Client(base_url=os.environ["BASE_URL"], headers=headers, timeout=60) as client:
    client.get("/health").raise_for_status()
    models = client.get("/v1/models")
    models.raise_for_status()
    served = [model["id"] for model in models.json()["data"]]
    if os.environ["MODEL"] not in served:
        raise SystemExit(f"{os.environ['MODEL']} is not served; there is {', '.join(served)}")
    answer = client.post("/v1/chat/completions", json=question)
    answer.raise_for_status()
    tokens = answer.json()["usage"]["completion_tokens"]
    if not tokens:
        raise SystemExit("the answer is empty")
    sys.stdout.write(f"answered with {tokens} tokens\n")
