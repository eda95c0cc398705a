"""The name that was meant."""

from ppln.names import nearest, suggestion


def test_the_most_similar_name():
    assert nearest("unet-13", ["edi", "unet-t", "unet-14"]) == "unet-14"
    assert nearest("pose", ["edi", "unet"]) is None
    assert nearest("abcd", ["abxx"], cutoff=0.5) == "abxx"
    assert nearest("abcd", ["abxx"], cutoff=0.51) is None


def test_a_suggestion_lists_all_there_are():
    assert suggestion("epi", {"edi": 1, "unet": 2}) == "did you mean 'edi'? There are edi, unet"
    assert suggestion("pose", iter(["edi", "unet"])) == "there are edi, unet"
