# pip install openai; OPENAI_BASE_URL=http://127.0.0.1:7071/v1 OPENAI_API_KEY=cgk_... python chat.py
import os

from openai import OpenAI

client = OpenAI()  # the base URL and the key of the environment
stream = client.chat.completions.create(
    model=os.environ.get("MODEL", "cay/scripted"),
    messages=[{"role": "user", "content": "Which islands are cays?"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="")
print()
