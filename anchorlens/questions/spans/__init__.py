"""Find the two segments of a question that a swap exchanges: its subject and its property.

Read ``span_finder`` first: it chooses between annotations, PopQA's templates, the English rules, a
spaCy pipeline and a function of the user. The rules begin in ``rules``, which lists them in their
order; ``parse`` and ``lexicon`` hold the view of a question and the words that they use.
"""
