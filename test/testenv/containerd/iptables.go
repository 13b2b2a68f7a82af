package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Rules in the nat table come from the CNI plugins: bridge (masquerading) and portmap (host
// ports). Both name the network in a comment, in rules that lead to a chain of each pod's own.

// natRules lists the rules of the nat table in the form that iptables takes.
func natRules(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "iptables", "-w", "-t", "nat", "-S").Output()
	if err != nil {
		return nil, fmt.Errorf("list the nat rules: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// removal returns the input of iptables-restore that removes the rules of a network and the
// chains which they alone lead to; empty when there is none.
func removal(rules []string, network string) string {
	mark := `name: \"` + network + `\"`
	var deletes, flushes, drops []string
	seen := map[string]bool{}
	for _, rule := range rules {
		if !strings.HasPrefix(rule, "-A ") || !strings.Contains(rule, mark) {
			continue
		}
		deletes = append(deletes, "-D"+strings.TrimPrefix(rule, "-A"))
		_, target, found := strings.Cut(rule, " -j ")
		chain, _, _ := strings.Cut(target, " ")
		// CNI-DN-* are portmap's chains of one pod, CNI-<hash> the bridge's. CNI-HOSTPORT-*
		// belong to all networks of the machine.
		if found && strings.HasPrefix(chain, "CNI-") && !strings.HasPrefix(chain, "CNI-HOSTPORT") && !seen[chain] {
			seen[chain] = true
			flushes, drops = append(flushes, "-F "+chain), append(drops, "-X "+chain)
		}
	}
	// A rule inside of a chain that is dropped goes with the flush; deleting it once more would fail.
	var commands []string
	for _, d := range deletes {
		if chain := strings.Fields(d)[1]; !seen[chain] {
			commands = append(commands, d)
		}
	}
	commands = append(append(commands, flushes...), drops...)
	if len(commands) == 0 {
		return ""
	}
	return "*nat\n" + strings.Join(commands, "\n") + "\nCOMMIT\n"
}

func removeRules(ctx context.Context, network string) error {
	rules, err := natRules(ctx)
	if err != nil {
		return err
	}
	return restore(ctx, removal(rules, network))
}

// restore applies commands to the nat table, all or none.
func restore(ctx context.Context, commands string) error {
	if commands == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, "iptables-restore", "-w", "--noflush")
	cmd.Stdin = bytes.NewBufferString(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, commands)
	}
	return nil
}

// emptyShared returns the commands that remove portmap's shared chains when no pod of anyone uses
// them: what is left in them are jumps among themselves and marks.
func emptyShared(rules []string) string {
	var deletes, flushes, drops []string
	for _, rule := range rules {
		fields := strings.Fields(rule)
		if strings.Contains(rule, "CNI-DN-") {
			return ""
		}
		switch {
		case fields[0] == "-N" && strings.HasPrefix(fields[1], "CNI-HOSTPORT"):
			flushes, drops = append(flushes, "-F "+fields[1]), append(drops, "-X "+fields[1])
		case fields[0] == "-A" && !strings.HasPrefix(fields[1], "CNI-") && strings.Contains(rule, "-j CNI-HOSTPORT"):
			deletes = append(deletes, "-D"+strings.TrimPrefix(rule, "-A"))
		}
	}
	if len(drops) == 0 {
		return ""
	}
	return "*nat\n" + strings.Join(append(append(deletes, flushes...), drops...), "\n") + "\nCOMMIT\n"
}
