"""Words that other projects use for what headrace has keys for: accepted where they mean the same, else answered.

A word is accepted in any section (`data.worker_count`, `training.worker_count`), because projects put it in different
ones. A word whose unit or meaning differs is never translated silently: its answer says what to write instead.
"""

from __future__ import annotations

ACCEPTED = {
    word: key
    for key, words in {
        "model.arch": "architecture model_type",
        "model.d_model": "n_embd hidden_size hidden_dim embedding_dim embed_dim dim",
        "model.num_layers": "n_layer n_layers num_hidden_layers depth",
        "model.num_heads": "n_head n_heads num_attention_heads",
        "model.d_ff": "intermediate_size ffn_dim ff_dim mlp_dim",
        "model.context": "max_position_embeddings n_positions n_ctx",
        "model.tie_embeddings": "tie_word_embeddings",
        "training.learning_rate": "lr",
        "training.max_length": "block_size seq_len seq_length sequence_length max_seq_len max_seq_length",
        "training.num_epochs": "epochs max_epochs num_train_epochs",
        "training.max_steps": "max_iters num_steps num_iterations total_steps num_train_steps",
        "training.gradient_clip": "grad_clip max_grad_norm gradient_clip_val clip_grad",
        "training.gradient_checkpointing": "activation_checkpointing",
        "training.precision": "dtype mixed_precision",
        "training.compile": "torch_compile",
        "training.weight_decay": "wd",
        "training.warmup": "warmup_ratio",
        "training.beta1": "adam_beta1",
        "training.beta2": "adam_beta2",
        "training.schedule": "lr_scheduler lr_scheduler_type lr_schedule",
        "training.evaluate_every": "eval_interval eval_steps eval_every",
        "training.save_every": "save_steps save_interval checkpoint_every",
        "data.sources": "data_dir data_path train_file train_data dataset dataset_path",
        "data.validation_sources": "val_data validation_file val_file validation_data eval_file",
        "data.validation_fraction": "val_fraction validation_split val_split",
        "data.tokenizer": "tokenizer_name tokenizer_path tokenizer_name_or_path",
        "data.num_workers": "worker_count workers dataloader_num_workers num_parallel_calls",
        "data.prefetch_batches": "prefetch_buffer_size prefetch_size prefetch",
        "data.text_field": "text_column content_field",
        "run.out": "out_dir output_dir save_dir",
        "run.processes": "nproc_per_node num_processes",
    }.items()
    for word in words.split()
}
"""The key of each word that means the same in the same unit."""

ANSWERS = {
    "bf16": "Write training.precision=bfloat16",
    "fp32": "Write training.precision=float32",
    "fp16": "Write training.precision=bfloat16: float16 is not offered, because it needs loss scaling",
    "cache_size": "What is buffered is bounded in bytes: data.memory_budget=256MiB (or in sequences:"
    " data.max_sequences_in_memory=1000)",
    "buffer_size": "Shuffling needs no buffer here: every block of the corpus is shuffled as a whole. What is held"
    " ready is data.prefetch_batches=4",
    "worker_buffer_size": "Batches are counted over all workers: data.prefetch_batches=4",
    "prefetch_factor": "Batches are counted over all workers: data.prefetch_batches=4",
    "gradient_accumulation_steps": "training.batch_size=64 is the whole update, and training.micro_batch_size=8 what"
    " is computed at once",
    "per_device_train_batch_size": "training.batch_size=64 is the whole update, over all processes, and"
    " training.micro_batch_size=8 what is computed at once",
    "warmup_steps": "The warm-up is a share of the run: training.warmup=0.02",
    "warmup_iters": "The warm-up is a share of the run: training.warmup=0.02",
    "lr_decay_iters": "The learning rate falls until the run ends: training.max_steps=2000",
    "eval_iters": "Evaluations are counted in tokens: training.evaluation_tokens=50000",
    "min_lr": "The end of the learning rate is a share of its peak: training.final_learning_rate=0.1",
    "num_batches": "Write training.max_steps=100",
    "skip_tf": "Write --skip tf after `headrace bench loaders`; training never loads TensorFlow",
    "dry_run": "`headrace plan` says what a run will cost; with HEADRACE_QUICK=1, every run is 3 small steps",
    "device": "The device is found by itself: an accelerator if there is one, else the CPU",
}
"""What to write instead of each word that has no exact counterpart."""

VALUES = {
    "training.precision": {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "32": "float32", "no": "float32"},
    "training.schedule": {"cos": "cosine", "warmup_stable_decay": "wsd"},
    "training.optimizer": {"adam": "adamw", "adamw_torch": "adamw"},
    "data.tokenizer": {"character": "char", "characters": "char", "bytes": "byte"},
}
"""Other words for values of a key."""

ANSWERED_VALUES = {
    "training.precision": dict.fromkeys(("fp16", "float16", "f16", "16", "half"), ANSWERS["fp16"]),
}
"""What to write instead of values that a key does not take."""


def normal(word: str) -> str:
    """Return a word as the tables spell it, without its section and the dashes of an option.

    >>> normal("--Num-Batches"), normal("training.lr")
    ('num_batches', 'lr')
    """
    return word.lstrip("-").replace("-", "_").rpartition(".")[2].lower()


def usual_value(key: str, value: object) -> object:
    """Return headrace's own word for a value, if it is another word for one; else the value itself.

    >>> usual_value("training.precision", "bf16"), usual_value("training.seed", 3)
    ('bfloat16', 3)
    """
    return VALUES.get(key, {}).get(_word(value), value)


def answered_value(key: str, value: object) -> str:
    """Return what to write instead of a value that people try; empty if nothing is known about it."""
    return ANSWERED_VALUES.get(key, {}).get(_word(value), "")


def _word(value: object) -> str:
    """Return a value as people type it; empty if it is neither a word nor a small number."""
    if value is False:
        return "no"  # YAML reads it so
    return value.lower() if isinstance(value, str) else str(value) if value in (16, 32) else ""
