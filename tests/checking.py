"""How types are checked at run time: as PEP 484 has it, where a whole number is a float too."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
