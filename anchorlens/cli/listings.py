"""``anchorlens models`` and ``anchorlens datasets``: list models and data sets."""

import click

from anchorlens.cli.output import listing


@click.command("models", epilog="\b\nExamples:\n  anchorlens models --all --json\n")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Include all names of TransformerLens (takes some seconds).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list for scripts.")
def models_command(everything: bool, as_json: bool) -> None:
    """List models that can be loaded by name.

    Any local directory or hub name of these families can be loaded (Llama, Mistral, Mixtral, Qwen 2
    and 3, Gemma, Phi, OLMo, gpt-oss, Apertus, GPT-2, GPT-J, GPT-Neo, GPT-NeoX, OPT, Bloom), and
    .gguf files (Llama, Qwen 2 and 3, Gemma 2 and 3, GPT-2).
    """
    from anchorlens.models.names import known_models

    listing("Models", known_models(everything), as_json=as_json)


@click.command(
    "datasets",
    epilog="\b\nExamples:\n  anchorlens swap --dataset mine --data-file mine.jsonl ...\n",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list for scripts.")
def datasets_command(as_json: bool) -> None:
    """List question sets, samples of prompt pairs, and the columns of your own files.

    \b
    Your own file of questions (jsonl, json, csv, tsv, parquet) needs the columns
      question   text
      answers    list of gold aliases (or answer: one text)
    and may have id, relation, answer_type, popularity, subject and property (text that occurs once
    in the question), or subject_span and property_span ([start, end] in characters). --columns
    question=q,answers=gold names others.

    \b
    Your own file of prompt pairs, for patch, needs the columns
      clean, corrupted   texts or lists of token ids
    and may have answer, wrong (one or several tokens; a list has alternatives), id, group,
    segments and alignment. --columns clean=prompt,answer=target names others.
    """
    from anchorlens.questions.datasets import known_datasets

    listing("Data sets", known_datasets(), as_json=as_json)
