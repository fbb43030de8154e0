"""Fat wheels split into a host wheel and wheels with the device code of one GPU target each."""
