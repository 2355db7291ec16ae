"""Train with Hugging Face's Trainer on headrace's batches, with instant and exact resume.

    python examples/train_transformers.py                           # the Python standard library: no download
    python examples/train_transformers.py corpus/ --out runs/mine --steps 500

The same command with more steps goes on as if it had never stopped. The last line of stdout is JSON. Needs
`pip install 'headrace[trainer]'`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import headrace as hr
from headrace.interop.trainer import TrainerRows, resume_callback

LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-transformers"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=25)
    options = parser.parse_args()

    cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer="bpe:2048", out=options.out / "cache")
    set_seed(0)
    shape = GPT2Config(
        vocab_size=cache.tokenizer.vocab_size, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(shape)
    with hr.Loader(cache, batch_size=16, sequence_length=LENGTH) as loader:
        arguments = TrainingArguments(
            output_dir=str(options.out),
            max_steps=options.steps,
            per_device_train_batch_size=loader.batch_size,
            remove_unused_columns=False,  # keeps `shift_labels`: every target of a row is trained on
            ignore_data_skip=True,  # the callback finds the place by itself
            lr_scheduler_type="constant",
            learning_rate=1e-3,
            save_steps=options.save_every,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=TrainerRows(loader), callbacks=[resume_callback(loader)])
        last = get_last_checkpoint(str(options.out))
        trainer.train(resume_from_checkpoint=last)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    print(json.dumps({"steps": trainer.state.global_step, "loss": losses[-1], "resumed": last is not None}))


if __name__ == "__main__":
    main()
