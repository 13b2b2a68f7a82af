package agentconfig

import (
	"errors"
	"strings"

	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/auth"
)

// CheckDevice says what of a valid configuration cannot work on this device: what is reserved of its memory, the
// folders, files and groups that are named. It uses what the agent starts with, and changes nothing. The error is
// strict.Problems.
func CheckDevice(cfg *v1alpha2.EdgeCore) error {
	var problems strict.Problems
	add := func(path string, err error) {
		if err == nil {
			return
		}
		text := err.Error()
		if rest, ok := strings.CutPrefix(text, path); ok {
			text = strings.TrimLeft(rest, ".: ")
		}
		problems = append(problems, strict.Problem{Path: path, Text: text})
	}
	if folders, ok := errors.AsType[strict.Problems](CheckFolders(cfg)); ok {
		problems = append(problems, folders...)
	}
	if own := &cfg.Modules.Edged; own.Enable {
		const kubelet = "modules.edged.tailoredKubeletConfig"
		_, err := EdgedOptions(cfg)
		add(kubelet, err)
		if api := apiOptions(own); api.ClientCA != "" && api.Listen != "" {
			add(kubelet+".authentication.x509.clientCAFile", auth.CheckFile(api.ClientCA))
		}
	}
	if twin := &cfg.Modules.DeviceTwin; twin.Enable {
		_, err := groupOf(twin.DMISockGroup)
		add("modules.deviceTwin.dmiSockGroup", err)
	}
	if cfg.Modules.EventBus.Enable {
		add("modules.eventBus", eventbus.Check(&cfg.Modules.EventBus, eventBusOptions(cfg)))
	}
	return problems.OrNil()
}
