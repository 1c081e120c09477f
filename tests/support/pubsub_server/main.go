// Package main is a small server of Google Cloud Pub/Sub for tests: Google's own fake, pstest, held to
// the limits that the service documents and the fake does not know.
//
// server HOST:PORT FOLDER
//
// FOLDER/messages.jsonl has what was published, in order, and is read again at the next start;
// FOLDER/faults.json says what goes wrong, by topic: see [fault].
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"cloud.google.com/go/iam/apiv1/iampb"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	requestBytes     = 10_000_000
	requestMessages  = 1000
	keyBytes         = 1024
	attributesMax    = 100
	attributeBytes   = 256
	attributeBytesOf = 1024
	publish          = "pubsub.topics.publish"
)

// entry is a topic that was made, or deleted, or a message that was published.
type entry struct {
	Topic       string            `json:"topic"`
	Deleted     bool              `json:"deleted,omitempty"`
	ID          string            `json:"id,omitempty"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Data        []byte            `json:"data,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
}

// fault is what a topic's requests are answered with: by a method's name, of all methods without
// one; only where a message contains the text, if there is one. The reason is that of Google's
// ErrorInfo. Without a code the request is carried out, and no identifiers are returned.
type fault struct {
	Method  string     `json:"method"`
	Text    string     `json:"text"`
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
	Reason  string     `json:"reason"`
}

func (f fault) error() error {
	told := status.New(f.Code, f.Message)
	if f.Reason == "" {
		return told.Err()
	}
	info := &errdetails.ErrorInfo{Reason: f.Reason, Domain: "pubsub.googleapis.com"}
	detailed, err := told.WithDetails(info)
	if err != nil {
		return err
	}
	return detailed.Err()
}

type front struct {
	iampb.UnimplementedIAMPolicyServer
	fake   *pstest.GServer
	folder string
	mu     sync.Mutex
	file   *os.File
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: server HOST:PORT FOLDER")
	}
	fake := pstest.NewServer()
	f := &front{fake: &fake.GServer, folder: os.Args[2]}
	if err := f.open(); err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(f.intercept),
		grpc.MaxRecvMsgSize(4*requestBytes), grpc.MaxSendMsgSize(4*requestBytes),
	)
	pb.RegisterPublisherServer(server, &fake.GServer)
	pb.RegisterSubscriberServer(server, &fake.GServer)
	iampb.RegisterIAMPolicyServer(server, f)
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

// open makes the topics again that a server before this one had.
func (f *front) open() error {
	name := filepath.Join(f.folder, "messages.jsonl")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	f.file = file
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the end, or what a kill left of a line
			break
		}
		var e entry
		if json.Unmarshal(line, &e) != nil || e.ID != "" {
			continue
		}
		if e.Deleted {
			_, err = f.fake.DeleteTopic(context.Background(), &pb.DeleteTopicRequest{Topic: e.Topic})
		} else {
			_, err = f.fake.CreateTopic(context.Background(), &pb.Topic{Name: e.Topic})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *front) write(entries []entry) error {
	var lines strings.Builder
	for _, e := range entries {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	_, err := f.file.WriteString(lines.String())
	return err
}

func (f *front) faults(topic, method string) []fault {
	data, err := os.ReadFile(filepath.Join(f.folder, "faults.json"))
	if err != nil {
		return nil
	}
	byTopic := map[string][]fault{}
	if err := json.Unmarshal(data, &byTopic); err != nil {
		log.Print(err)
	}
	var found []fault
	for _, each := range byTopic[path.Base(topic)] {
		if each.Method == "" || each.Method == method {
			found = append(found, each)
		}
	}
	return found
}

func (f *front) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	switch r := request.(type) {
	case *pb.PublishRequest:
		return f.publish(ctx, r, handle)
	case *pb.GetTopicRequest:
		for _, each := range f.faults(r.Topic, method) {
			if each.Text == "" && each.Code != codes.OK {
				return nil, each.error()
			}
		}
	case *pb.Topic, *pb.DeleteTopicRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		answer, err := handle(ctx, request)
		if err == nil {
			deleted, isDelete := request.(*pb.DeleteTopicRequest)
			e := entry{Deleted: isDelete}
			if isDelete {
				e.Topic = deleted.Topic
			} else {
				e.Topic = request.(*pb.Topic).Name
			}
			err = f.write([]entry{e})
		}
		return answer, err
	}
	return handle(ctx, request)
}

func (f *front) publish(ctx context.Context, r *pb.PublishRequest, handle grpc.UnaryHandler) (any, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	silent := false
	for _, each := range f.faults(r.Topic, "Publish") {
		if !contains(r, each.Text) {
			continue
		}
		if each.Code != codes.OK {
			return nil, each.error()
		}
		silent = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answer, err := handle(ctx, r)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, len(r.Messages))
	for i, m := range r.Messages {
		entries[i] = entry{
			Topic: r.Topic, ID: m.MessageId, OrderingKey: m.OrderingKey, Data: m.Data, Attributes: m.Attributes,
		}
	}
	if silent {
		answer = &pb.PublishResponse{}
	}
	return answer, f.write(entries)
}

func contains(r *pb.PublishRequest, text string) bool {
	for _, m := range r.Messages {
		if strings.Contains(string(m.Data), text) {
			return true
		}
	}
	return text == ""
}

// check refuses what the service refuses (cloud.google.com/pubsub/quotas).
func check(r *pb.PublishRequest) error {
	size, keys := 0, map[string]bool{}
	for _, m := range r.Messages {
		keys[m.OrderingKey] = true
		size += len(m.Data) + len(m.OrderingKey)
		if err := checkMessage(m); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		for name, value := range m.Attributes {
			size += len(name) + len(value)
		}
	}
	if len(r.Messages) == 0 || len(r.Messages) > requestMessages {
		return status.Error(codes.InvalidArgument, "The value for message_count is out of bounds.")
	}
	if size > requestBytes {
		return status.Error(codes.InvalidArgument, "Request payload size exceeds the limit: 10000000 bytes.")
	}
	if len(keys) > 1 {
		return status.Error(codes.FailedPrecondition, "In a single publish request, all messages "+
			"must have no ordering key or they must all have the same ordering key.")
	}
	return nil
}

func checkMessage(m *pb.PubsubMessage) error {
	switch {
	case len(m.Data) == 0 && len(m.Attributes) == 0:
		return errors.New("a message has neither data nor an attribute")
	case len(m.OrderingKey) > keyBytes:
		return errors.New("the ordering key is too long")
	case len(m.Attributes) > attributesMax:
		return errors.New("too many attributes")
	}
	for name, value := range m.Attributes {
		if name == "" || value == "" || len(name) > attributeBytes || len(value) > attributeBytesOf {
			return errors.New("an attribute is empty or too long")
		}
	}
	return nil
}

// TestIamPermissions returns what the account may do: nothing with a topic that is missing, and not
// what a fault forbids.
func (f *front) TestIamPermissions(
	ctx context.Context, r *iampb.TestIamPermissionsRequest,
) (*iampb.TestIamPermissionsResponse, error) {
	for _, each := range f.faults(r.Resource, "TestIamPermissions") {
		if each.Code != codes.OK && each.Code != codes.PermissionDenied {
			return nil, each.error()
		}
	}
	for _, each := range f.faults(r.Resource, "Publish") {
		if each.Code == codes.PermissionDenied {
			return &iampb.TestIamPermissionsResponse{}, nil
		}
	}
	if _, err := f.fake.GetTopic(ctx, &pb.GetTopicRequest{Topic: r.Resource}); err != nil {
		return &iampb.TestIamPermissionsResponse{}, nil
	}
	return &iampb.TestIamPermissionsResponse{Permissions: []string{publish}}, nil
}
