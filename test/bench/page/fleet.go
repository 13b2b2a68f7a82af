package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/bench/svg"
)

// The points over which the growth of cloudcore is shown.
var (
	fleets   = []int{100, 1000, 5000, 10000}
	replicas = []int{1, 2, 3}
)

// fleet is cloudcore under simulated nodes.
func fleet(f *results.File) section {
	s := section{
		ID:    "nodes",
		Title: "cloudcore over nodes",
		Text: "Simulated nodes that speak the real protocol over TLS, with a real kube-apiserver, all on this " +
			"machine: the nodes take most of its processors, and etcd runs without fsync. Memory is of each " +
			"cloudcore, processor time of all together. The dashed line is a client of the API that watches.",
	}
	counts := replicasOf(f)
	for i, n := range counts {
		s.Legend = append(s.Legend, key{replicaColor(i), cloudcores(n)})
	}
	for _, name := range []string{results.CloudRSS, results.CloudLive, results.CloudCPU, results.CloudRegister,
		results.CloudRegisterCPU, results.CloudP50, results.CloudP99, results.CloudStorm} {
		metric, _ := results.MetricOf(name)
		var lines []svg.Line
		for i, n := range counts {
			series := slices.DeleteFunc(f.Of(name, results.CloudCore), func(s results.Series) bool {
				return s.At.Replicas != n
			})
			line := svg.Line{Name: cloudcores(n), Color: replicaColor(i),
				Points: points(series, func(at results.Point) int { return at.Nodes })}
			if len(line.Points) > 0 {
				lines = append(lines, line)
			}
		}
		if floor := f.Of(name, results.Floor); len(floor) > 0 {
			lines = append(lines, svg.Line{Name: "a watch", Color: colors[results.Floor], Dashed: true,
				Points: points(floor, func(at results.Point) int { return at.Nodes })})
		}
		if len(lines) > 0 {
			s.Plots = append(s.Plots, drawn(metric.Title, svg.Lines(metric.Title, lines,
				svg.Axis{X: "nodes", Format: formatter(metric.Unit), Log: true})))
		}
	}
	s.Missing = fleetMissing(f)
	return s
}

// replicaColor returns the color of the i-th number of cloudcores, never that of the floor.
func replicaColor(i int) int {
	list := []int{colors[results.EdgeCore], colors[results.Kubelet], colors[results.CloudCore]}
	return list[i%len(list)]
}

// replicasOf returns the numbers of cloudcores with any results.
func replicasOf(f *results.File) []int {
	var list []int
	for _, s := range f.Series {
		if s.Subject == results.CloudCore && s.At.Replicas > 0 {
			list = append(list, s.At.Replicas)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// fleetMissing lists the points that were not measured, by replicas.
func fleetMissing(f *results.File) []missing {
	var list []missing
	for _, n := range replicas {
		var left []string
		for _, nodes := range fleets {
			// One metric of each part: a run that fails halfway leaves the results of the parts before.
			for _, name := range []string{results.CloudRSS, results.CloudP99, results.CloudStorm} {
				if _, ok := f.Find(name, results.CloudCore, results.Point{Nodes: nodes, Replicas: n}); !ok {
					left = append(left, fmt.Sprint(nodes))
					break
				}
			}
		}
		if len(left) == 0 {
			continue
		}
		numbers := strings.Join(left, ",")
		command := "go run ./test/bench/link --parts memory,updates,storm --json " + results.Recorded + " --nodes " +
			numbers
		if n > 1 {
			command += fmt.Sprintf(" --replicas %d", n)
		}
		list = append(list, missing{fmt.Sprintf("%s with %s nodes", cloudcores(n), numbers), command})
	}
	return list
}
