from core.links import Link, links

TORCH_SHA256 = "a" * 64


def test_reads_links_as_installers_read_them() -> None:
    page = (
        f'<a href="../../torch-2.10.0%2Brocm7.1.whl#sha256={TORCH_SHA256}">torch</a>'
        '<a href="rocm-7.1.tar.gz">rocm</a>'
        '<a name="top">no link</a>'
    )

    assert links(page) == {
        "../../torch-2.10.0%2Brocm7.1.whl": Link(name="torch-2.10.0+rocm7.1.whl", sha256=TORCH_SHA256),
        "rocm-7.1.tar.gz": Link(name="rocm-7.1.tar.gz"),
    }


def test_digests_of_links_may_be_in_upper_case() -> None:
    page = f'<a href="torch-2.10.0.whl#sha256={TORCH_SHA256.upper()}">torch</a>'

    assert links(page)["torch-2.10.0.whl"].sha256 == TORCH_SHA256


def test_links_are_relative_to_the_base_that_a_page_names() -> None:
    page = '<base href="https://files.example/simple/"><a href="../torch-2.10.0.whl">torch</a>'

    assert list(links(page)) == ["https://files.example/torch-2.10.0.whl"]
