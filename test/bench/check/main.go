// Command check compares results with the recorded ones, and fails if edgecore's ratio to the floor has become worse.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

const help = `Compares new results with the recorded ones, and exits with 1 if a ratio to the floor is more than 15 % worse. Ratios
are compared, not times, since the floor is slower on a slower machine, too. A ratio counts as worse only if the spread
of the samples cannot explain the difference. Otherwise it is reported as noisy, which is not a failure.

    make bench-check
    go run ./test/bench/peers --parts token,plain,bursts --json bin/bench-check.json
    go run ./test/bench/check --measured bin/bench-check.json

`

func main() {
	recorded := flag.String("recorded", results.Recorded, "the recorded `file` of results")
	measured := flag.String("measured", "bin/bench-check.json", "the `file` of results to compare with it")
	allowed := flag.Float64("allowed", 0.15, "by how much a ratio may be worse; 0.15 is 15 %")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), help)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*recorded, *measured, *allowed); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run(recorded, measured string, allowed float64) error {
	was, err := results.Load(recorded)
	if err != nil {
		return err
	}
	is, err := results.Load(measured)
	if err != nil {
		return err
	}
	text, err := report(compare(was, is, allowed), allowed)
	fmt.Print(text)
	return err
}
