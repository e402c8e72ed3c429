"""A figure of the style "paper" and a LaTeX table fit a column of a two-column article, with all fonts embedded."""

import subprocess

import pytest

import fedprivjax as fpj

ARTICLE = r"""
\documentclass[10pt,twocolumn]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{graphicx,booktabs}
\setlength{\textwidth}{6.9in}\setlength{\columnsep}{0.2in}\setlength{\oddsidemargin}{-0.2in}
\begin{document}
\begin{figure}\includegraphics{accuracy}\caption{Accuracy}\end{figure}
\begin{figure*}\includegraphics{panels}\caption{Panels}\end{figure*}
\begin{table}\small %s \caption{Accuracy}\end{table}
Text.
\end{document}
"""


@pytest.mark.latex
def test_figures_and_tables_fit_a_column(tmp_path):
    problem = fpj.from_dataset(fpj.datasets.load("digits"), constraint=fpj.Ball(8.0))
    grid = fpj.sweep(
        fpj.DPMu2(clip=1.6),
        problem,
        fpj.Uniform(20, 10),
        over={"mu": [1.0, 2.0, 4.0], "per_round": [5, 10]},
        seeds=3,
        rounds=4,
    )
    fpj.plot(grid.sel(per_round=5), "test_accuracy", style="paper").savefig(tmp_path / "accuracy")
    fpj.plot(grid, "test_accuracy", style="paper").savefig(tmp_path / "panels")
    table = fpj.frame(grid.sel(per_round=5), "test_accuracy").to_latex()
    (tmp_path / "article.tex").write_text(ARTICLE % table, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "article.tex"]
    written = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert written.returncode == 0, written.stdout[-2000:]
    assert "Overfull" not in written.stdout
    fonts = subprocess.run(["pdffonts", "article.pdf"], cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = fonts.stdout.splitlines()[2:]
    assert len(rows) > 2
    for row in rows:
        embedded, _subset, _unicode = row.split()[-5:-2]
        assert embedded == "yes", row
        assert "Type 3" not in row or "CM" not in row, row
