"""Examples made by hand."""

from anchorlens.questions.example import Example, Span, question_id


def example(
    question: str, subject: str, prop: str, *answers: str, relation: str | None = None, example_id: str | None = None
) -> Example:
    """An example whose spans are the first occurrences of two texts."""
    start, at = question.index(subject), question.index(prop)
    return Example(
        example_id=example_id or f"id:{question}",
        question_id=question_id(question),
        dataset="made",
        question=question,
        answers=answers or ("Paris",),
        subject=Span(start, start + len(subject)),
        property=Span(at, at + len(prop)),
        relation=relation,
    )


def capital(country: str, city: str, *aliases: str) -> Example:
    """What is the capital of ...?"""
    return example(f"What is the capital of {country}?", country, "capital", city, *aliases, relation="capital")
