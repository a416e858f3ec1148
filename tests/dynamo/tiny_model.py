"""Writes a model directory that Dynamo accepts: a real tokenizer and no weights.

usage: tiny_model.py DIRECTORY

Nothing is downloaded. The tokenizer is byte-level, so that any text survives encode and
decode unchanged; it is trained on the help texts of the Python interpreter.
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, START, END = "<pad>", "<|im_start|>", "<|im_end|>"  # ids 0, 1, 2
CONTEXT = 32768

TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # ASCII alone: no token then ends inside a character, whatever ids a mocker draws.
    texts = (topics[key].encode("ascii", "ignore").decode() for key in sorted(topics))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main(directory: Path) -> None:
    tokenizer = train()
    token_ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": CONTEXT,
            "vocab_size": tokenizer.get_vocab_size(),
            **token_ids,
        },
        "generation_config.json": token_ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": START,
            "eos_token": END,
            "model_max_length": CONTEXT,
            "chat_template": TEMPLATE,
        },
    }
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
