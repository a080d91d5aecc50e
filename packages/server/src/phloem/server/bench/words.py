"""The words that benchmark prompts are made of: common ones, which most vocabularies hold whole."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ARTICLES = _words("the a one this that each another my your his her our their")

ADJECTIVES = _words("""
    big small young old new great high low deep hot cold fresh dry wet clean dirty sharp soft hard
    sweet bitter rich poor busy free open private public local modern ancient happy sad brave proud
    wise kind quick slow loud calm round flat thick thin heavy light purple orange pink gray brown
    common rare perfect final first second
""")

NOUNS = _words("""
    man woman boy girl baby student nurse pilot driver judge lawyer scientist artist singer dancer
    hero neighbor village town street corner room floor wall roof kitchen hotel hospital museum
    theater airport beach lake ocean desert valley hill cave tree leaf flower grass seed root bird
    cat dog fish lion bear wolf mouse snake cow sheep rice milk meat egg salt soup cake tea wine
    phone radio computer robot lamp door chair bed desk knife spoon bottle box bag hat coat shoe
    ring coin book page map note poem song game team prize week month hour minute year century
""")

VERBS = _words("""
    saw found liked loved hated bought sold made broke fixed cleaned washed painted carried threw
    caught hid sent wrote read drew sang played joined visited entered passed reached led chased
    protected attacked served paid taught trained measured counted tested described explained
    forgot believed trusted welcomed thanked
""")

PREPOSITIONS = _words(
    "in on at by with near under behind beyond within without above below along past"
)

STOPS = (".", ".", ".", "!", "?")
"""Most sentences are statements."""

NAMES = _words("""
    Anna Martin Sarah Thomas Lucy Adam Grace Peter Rose Paul Emily Jack Alice Henry Mary David
""")

SURNAMES = _words("""
    Miller Carter Fisher Baker Cook Turner Walker Hunter Mason Parker Taylor Archer Weaver Shepherd
    Porter Smith
""")

TRADES = _words("nurse pilot lawyer singer baker sailor gardener translator")
