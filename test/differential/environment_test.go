package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// environmentCases are about what containers are started with: variables, name servers, identity, credentials.
func environmentCases() []Case {
	return []Case{
		{
			Name: "environment-files",
			Spec: envFiles(map[string]string{
				"comment":      "A='v' # note",
				"glued":        "A='v'# note",
				"first":        "A='1'\\nA='2'",
				"blank-before": "A ='v'",
				"blank-behind": "A= 'v'",
				"skipped":      "B= x\\nA='v'",
				"empty":        "A=''",
				"unread":       "A='v'\\nwords",
				"words":        "words\\nA='v'",
				"lines":        "\\n  # c\\n\\tA='one\\ntwo'\\r",
				"bare":         "A=v",
				"open":         "A='v",
				"behind":       "A='v'w",
				"names":        "a.b-c='1'\\n1='2'\\nA='$(X)'",
				"absent":       "B='v'",
			}),
			// The pod has more events than an agent sends of one.
			Ignore: []string{`events/"Normal",.*`, `events/"Warning","Failed",.*`},
			Steps: []Step{Waiting("behind", "CreateContainerConfigError"), Started("lines"), Started("unread"),
				Inspect()},
		},
		{
			Name: "environment-expanded",
			Spec: `
containers:
- name: main
  env:
  - {name: A, value: one}
  - {name: B, value: "$(A)-$(MISSING)-$$(A)"}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
  command: [sh, -c, "echo $(B) $(IP); exec sleep 3600"]
`,
			Steps: []Step{Running(), Inspect()},
		},
		{
			Name:  "environment-node-dns",
			Spec:  `{dnsPolicy: Default, containers: [{name: main}]}`,
			Steps: []Step{Running(), Inspect(), Exec("main", "cat /etc/resolv.conf")},
		},
		{
			Name: "environment-dns",
			Spec: `
dnsConfig: {nameservers: [192.0.2.9], searches: [., three.example], options: [{name: ndots, value: "3"}, {name: edns0}]}
hostAliases: [{ip: 192.0.2.7, hostnames: [seven, seven.example]}]
hostname: named
subdomain: below
containers: [{name: main}]
`,
			Steps: []Step{Running(), Inspect(), Exec("main", "cat /etc/resolv.conf /etc/hosts; hostname")},
		},
		{
			Name: "environment-seccomp",
			Spec: `
securityContext: {seccompProfile: {type: Unconfined}}
containers:
- {name: main}
- {name: default, securityContext: {seccompProfile: {type: RuntimeDefault}}}
- {name: missing, securityContext: {seccompProfile: {type: Localhost, localhostProfile: missing.json}}}
`,
			Steps: []Step{Started("main"), Started("default"), Event("Failed"), Inspect()},
		},
		{
			Name:  "environment-node-credentials",
			Spec:  `containers: [{name: main, image: "127.0.0.1:1/absent:1"}]`,
			Steps: []Step{Waiting("main", "ImagePullBackOff")},
		},
		{
			Name: "environment-pull-secrets",
			Objects: `
{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{"auths": {"127.0.0.1:1/some": {"username": "some", "password": "one"}, "127.0.0.1:1/other": {"username": "other", "password": "two"}}}'}}
`,
			Spec:  `{imagePullSecrets: [{name: @NAME@}, {name: missing}], containers: [{name: main, image: "127.0.0.1:1/something/absent:1"}]}`,
			Steps: []Step{Waiting("main", "ImagePullBackOff")},
		},
		{
			Name: "environment-pull-tokens",
			Objects: `
{apiVersion: v1, kind: Secret, metadata: {name: @NAME@}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{"auths": {"127.0.0.1:1": {"identitytoken": "one", "registrytoken": "two"}}}'}}
`,
			Spec:  `{imagePullSecrets: [{name: @NAME@}], containers: [{name: main, image: "127.0.0.1:1/some/absent:1"}]}`,
			Steps: []Step{Waiting("main", "ImagePullBackOff")},
		},
		{
			Name:  "environment-devices",
			Spec:  `containers: [{name: main, securityContext: {privileged: true}}, {name: plain, securityContext: {capabilities: {drop: [ALL], add: [NET_ADMIN]}, readOnlyRootFilesystem: true}}]`,
			Steps: []Step{Running(), Inspect()},
		},
	}
}

// envFiles is a pod with a container for each file of variables, from which it takes A.
func envFiles(files map[string]string) string {
	var scripts, containers strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&scripts, "printf \"%s\" >/v/%s; ", files[name], name)
		fmt.Fprintf(&containers,
			"- {name: %s, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: %s, key: A}}}]}\n", name, name)
	}
	return fmt.Sprintf(`
initContainers: [{name: write, command: [sh, -c, '%ssleep 2'], volumeMounts: [{name: v, mountPath: /v}]}]
containers:
%s
volumes: [{name: v, emptyDir: {}}]
`, strings.ReplaceAll(scripts.String(), "'", "''"), containers.String())
}
