"""A recipe carried out: corpus, tokenizer, model, training with its listeners, exported and measured model."""
