package link

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

var updateMetrics = flag.Bool("update-metrics", false, "TestLink/Metrics adds what it finds to docs/metrics.md")

var (
	metricsPage = filepath.Join("..", "..", "docs", "metrics.md")
	// metricRow matches a row of a table of metrics: its name, its type, its help.
	metricRow = regexp.MustCompile("^\\| `([A-Za-z_]+)` \\| ([a-z]+) \\| (.*) \\|$")
)

// testMetrics: docs/metrics.md has each metric that a node and cloudcore serve, with its type and its help. What
// neither serves now, since it has not happened, is at least in the code.
func testMetrics(t *testing.T, c *env.Cluster) {
	port, err := daemon.FreePort()
	env.Must(t, err)
	e := startEdgeWith(t, c, nil, map[string]any{
		"enable": true, "mqttMode": 0, "mqttServerInternal": fmt.Sprintf("tcp://127.0.0.1:%d", port),
	})
	e.apply(e.pod("web", env.Forever) + "    readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1}\n")
	e.running("web")
	_, err = e.Get(t.Context(), "/healthz") // its results are /metrics/slis
	env.Must(t, err)
	texts := map[string]string{}
	for _, path := range []string{
		"/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis",
	} {
		text, err := e.Get(t.Context(), path)
		env.Must(t, err)
		texts["a node at "+path] = text
	}
	text, err := c.Cloud.Get(t.Context(), "/metrics")
	env.Must(t, err)
	texts["cloudcore"] = text
	page, err := os.ReadFile(metricsPage)
	env.Must(t, err)
	if *updateMetrics {
		page = addMetrics(t, page, texts)
		env.Must(t, os.WriteFile(metricsPage, page, 0o644))
	}
	documented := metricTables(string(page))
	code := literals(t)
	for title, text := range texts {
		rows := documented[title]
		served := families(t, text)
		if len(served) == 0 {
			t.Errorf("%s serves no metrics of its own, want some", title)
		}
		for name, row := range served {
			if diff := cmp.Diff(row, rows[name]); diff != "" {
				t.Errorf("docs/metrics.md on %s of %s (-want +got); -update-metrics adds it:\n%s", name, title, diff)
			}
		}
		for name := range rows {
			inCode := func(literal string) bool { return strings.HasSuffix(name, literal) }
			if served[name] == "" && !slices.ContainsFunc(code, inCode) {
				t.Errorf("docs/metrics.md has %s, which is no metric of %s", name, title)
			}
		}
	}
}

// families returns the metrics of a text, as rows by their names. Those of Go's runtime and the process are left out.
func families(t *testing.T, text string) map[string]string {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	found, err := parser.TextToMetricFamilies(strings.NewReader(text))
	env.Must(t, err)
	rows := map[string]string{}
	for name, f := range found {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			rows[name] = metricRowOf(name, f)
		}
	}
	return rows
}

func metricRowOf(name string, f *dto.MetricFamily) string {
	return fmt.Sprintf("| `%s` | %s | %s |", name, strings.ToLower(f.GetType().String()), f.GetHelp())
}

// metricTables returns the rows of the tables of docs/metrics.md, by the titles above them and by their names.
func metricTables(page string) map[string]map[string]string {
	tables, title := map[string]map[string]string{}, ""
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if after, ok := strings.CutPrefix(line, "## Metrics of "); ok {
			title = after
			tables[title] = map[string]string{}
		}
		if row := metricRow.FindStringSubmatch(line); row != nil && tables[title] != nil {
			tables[title][row[1]] = line
		}
	}
	return tables
}

// addMetrics returns the page with what is served, in tables sorted by name. Rows that are not served now stay.
func addMetrics(t *testing.T, page []byte, texts map[string]string) []byte {
	t.Helper()
	before, _, _ := strings.Cut(string(page), "\n## Metrics of ")
	tables := metricTables(string(page))
	var b strings.Builder
	b.WriteString(strings.TrimRight(before, "\n") + "\n")
	for _, title := range slices.Sorted(maps.Keys(texts)) {
		rows := tables[title]
		if rows == nil {
			rows = map[string]string{}
		}
		maps.Copy(rows, families(t, texts[title]))
		fmt.Fprintf(&b, "\n## Metrics of %s\n\n| metric | type | what it is |\n|---|---|---|\n", title)
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			b.WriteString(rows[name] + "\n")
		}
	}
	return []byte(b.String())
}

// literals returns the strings of the code that may be the end of a metric's name.
func literals(t *testing.T) []string {
	t.Helper()
	text := regexp.MustCompile(`"([a-z_]{4,})"`)
	var list []string
	for _, folder := range []string{
		"edged", "edgehub", "eventbus", "devicetwin", "metamanager", "metaserver", "cloud", "cmd",
	} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, found := range text.FindAllSubmatch(data, -1) {
				list = append(list, string(found[1]))
			}
			return err
		})
		env.Must(t, err)
	}
	return list
}
