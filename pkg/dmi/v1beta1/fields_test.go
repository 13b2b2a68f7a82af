package v1beta1

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestFields: numbers and types of all fields are KubeEdge's, which testdata/fields.txt lists: a message a line, its
// fields as NUMBER:TYPE.
func TestFields(t *testing.T) {
	text, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	messages := File_pkg_dmi_v1beta1_messages_proto.Messages()
	for i := range messages.Len() {
		got = append(got, describe(messages.Get(i)))
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestMethods: the services have KubeEdge's names, and methods whose messages are named after them.
func TestMethods(t *testing.T) {
	want := map[string][]string{
		"v1beta1.DeviceManagerService": {"MapperRegister", "ReportDeviceStatus", "ReportDeviceStates"},
		"v1beta1.DeviceMapperService": {
			"RegisterDevice", "RemoveDevice", "UpdateDevice", "CreateDeviceModel", "RemoveDeviceModel",
			"UpdateDeviceModel", "GetDevice",
		},
	}
	got := map[string][]string{}
	services := File_pkg_dmi_v1beta1_services_proto.Services()
	for i := range services.Len() {
		service := services.Get(i)
		name := string(service.FullName())
		for j := range service.Methods().Len() {
			m := service.Methods().Get(j)
			got[name] = append(got[name], string(m.Name()))
			if in, out := m.Input().Name(), m.Output().Name(); in != m.Name()+"Request" || out != m.Name()+"Response" {
				t.Errorf("%s takes %s and returns %s", m.FullName(), in, out)
			}
			if m.IsStreamingClient() || m.IsStreamingServer() {
				t.Errorf("%s is a stream", m.FullName())
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("methods (-want +got):\n%s", diff)
	}
}

func describe(m protoreflect.MessageDescriptor) string {
	line := string(m.Name())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		line += fmt.Sprintf(" %d:%s", f.Number(), typeOf(f))
	}
	return line
}

func typeOf(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return "map<" + typeOf(f.MapKey()) + "," + typeOf(f.MapValue()) + ">"
	}
	name := f.Kind().String()
	if f.Message() != nil {
		name = strings.TrimPrefix(string(f.Message().FullName()), "edgecore.dmi.v1beta1.")
	}
	if f.IsList() {
		return "[]" + name
	}
	return name
}
