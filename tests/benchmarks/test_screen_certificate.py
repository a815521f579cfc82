"""The statement of a screen is true where all edges are known, and wrong limits are found out."""

import pytest


@pytest.fixture(scope="module")
def certificate(script):
    return script("screen_certificate")


def found_only(screen):
    """Limit that ignores the edges which were not drawn."""
    return sum(audit.found for audit in screen.audits)


def extrapolated(screen):
    """Limit without a margin: the share among the drawn edges is taken for that of all."""
    return round(sum(audit.size * audit.found / audit.drawn for audit in screen.audits))


def nothing(_screen):
    """Limit that ignores the audit."""
    return 0


@pytest.fixture(scope="module")
def thin(certificate):
    """400 edges: the scores see ten of the large effects, and not the other twelve."""
    exact = {f"e{i}": 1.0 if i < 10 or i % 33 == 0 else 0.01 for i in range(400)}
    scores = {edge: value if int(edge[1:]) < 10 else 0.0 for edge, value in exact.items()}
    return certificate.Known(name="thin", exact=exact, scores={"attribution": scores}, cut=0.5)


@pytest.mark.parametrize("cut", [0.5, None])
def test_the_statement_of_a_screen_that_sees_half_is_true(certificate, thin, cut):
    found = certificate.repeat(thin, top=10, audit=60, cut=cut)
    assert found.missed == 12 and len(found.limits) == 400
    assert found.lower >= 0.92


@pytest.mark.parametrize("limit", [nothing, found_only, extrapolated])
def test_a_wrong_limit_is_found_false(certificate, thin, limit):
    found = certificate.repeat(thin, top=10, audit=60, cut=0.5, limit=limit)
    assert found.lower < 0.92


@pytest.mark.slow
def test_planted_effects_that_attribution_cannot_see(certificate):
    circuit = certificate.hidden()
    for formula, scores in (
        (circuit.exact, certificate.measure_exact(circuit)),
        (circuit.attribution, certificate.measure_attribution(circuit)),
        (circuit.integrated(5), certificate.measure_attribution(circuit, steps=5)),
    ):
        assert formula.keys() <= scores.keys()
        for edge, score in scores.items():
            assert score == pytest.approx(formula.get(edge, 0.0), abs=1e-4), edge


@pytest.mark.slow
def test_the_statement_is_true_on_planted_circuits_and_small_checkpoints(certificate):
    """400 audits for each number of candidates and each kind of cut."""
    cases = certificate.small_cases()
    assert len(cases) == 4
    missed = 0
    for known in cases:
        for top, audit in known.tops:
            for cut in (known.cut, None):
                found = certificate.repeat(known, top=top, audit=audit, cut=cut)
                assert found.lower >= certificate.LEAST, (known.name, top, audit, cut)
                missed += found.missed > 0
    assert missed >= 18


@pytest.mark.slow
@pytest.mark.parametrize("limit", [nothing, found_only])
def test_a_wrong_limit_is_false_with_a_saturated_head_and_a_cancelling_pair(certificate, limit):
    known = certificate.from_circuit(certificate.hidden(noise=certificate.NOISE), "hidden")
    found = certificate.repeat(known, top=5, audit=20, cut=known.cut, limit=limit)
    assert found.missed >= 4 and found.lower < 0.92
