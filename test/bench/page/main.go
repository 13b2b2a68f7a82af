// Command page writes bench/index.html, a page with plots, the table of docs/benchmarks.md, and README's figures, all
// from bench/record.json. The same results always give the same output.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

const help = `Writes recorded results as a page with plots, which loads nothing from the network, as the table of docs/benchmarks.md,
and as README's figures.

    make bench-page                                       # from bench/record.json
    go run ./test/bench/page --results bin/bench.json --out /tmp/bench.html --table "" --readme ""

The page says what has not been measured yet, and which command measures it. To record:

    go run ./test/bench/peers --mode long --json bench/record.json   # about 25 minutes; --parts for a piece
    go run ./test/bench/link --nodes 1000 --json bench/record.json

`

func main() {
	from := flag.String("results", results.Recorded, "the `file` of results")
	out := flag.String("out", "bench/index.html", "the page that is written; \"\" for none")
	tableFile := flag.String("table", "docs/benchmarks.md", "the file whose table is written; \"\" for none")
	readme := flag.String("readme", "README.md", "the file whose figures are written; \"\" for none")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), help)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*from, *out, *tableFile, *readme); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func run(from, out, tableFile, readme string) error {
	f, err := results.Load(from)
	if err != nil {
		return err
	}
	if out != "" {
		page, err := render(f)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(out, page, 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", out)
	}
	if tableFile != "" {
		if err := tableMarkers.write(tableFile, markdown(f)); err != nil {
			return err
		}
	}
	if readme != "" {
		return figuresMarkers.write(readme, figures(f))
	}
	return nil
}
