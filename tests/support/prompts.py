"""Twenty prompts that differ in what they ask, how they read and what they cut tokens at."""

CODE = """def area(shape):
    if shape["kind"] == "circle":
        return 3.14159 * shape["radius"] ** 2
    if shape["kind"] == "square":
        return shape["side"] ** 2
    raise ValueError(shape["kind"])
"""

FACTS = (
    "The river Aare is 288 km long. The river Reuss is 164 km long. The river Limmat is 35 km "
    "long. The river Rhine is 1,233 km long. "
)

PROMPTS = (
    "Hello! Who are you?",
    "Write the numbers from 1 to 30, separated by commas.",
    f"Repeat this code exactly, three times:\n{CODE}",
    f"Add a branch for triangles to this code:\n{CODE}",
    f"{FACTS * 3}Which of these rivers is the longest, and how long is it?",
    f"Copy this text word for word: {FACTS}",
    "Translate to French: The cat sleeps on the warm stove.",
    "List five fruits, one per line, each with a colour.",
    "日本の首都はどこですか。短く答えてください。",
    "用中文写一句关于春天的话。",
    "Repeat after me: 🚴‍♀️🚴🏽🚴‍♂️ 🎉🎉🎉 naïve café",
    "Schreibe einen Satz über Fahrräder.",
    "What is 17 + 25? Think step by step.",
    'Give a JSON object with the keys "name" and "age" for a person called Kim, aged 31.',
    "Write a haiku about the sea.",
    "a a a a a a a a a a a a a a a a a a a a a a a a",
    "Summarize in one sentence: " + FACTS * 4,
    "Write a Python function that reverses a string, then write it again with a docstring.",
    "Continue: one two three one two three one two three one two",
    "?",
)
