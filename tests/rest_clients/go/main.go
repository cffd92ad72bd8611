// Calls one method of the client go-kafka-connect: arguments are the URL, the method, and the request in JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/ricardo-ch/go-kafka-connect/v3/lib/connectors"
)

func main() {
	client := connectors.NewClient(os.Args[1])
	connector := connectors.ConnectorRequest{}
	create := connectors.CreateConnectorRequest{}
	task := connectors.TaskRequest{}
	for _, request := range []interface{}{&connector, &create, &task} {
		if err := json.Unmarshal([]byte(os.Args[3]), request); err != nil {
			exit(err)
		}
	}
	var response interface{}
	var err error
	switch os.Args[2] {
	case "GetAll":
		response, err = client.GetAll()
	case "GetConnector":
		response, err = client.GetConnector(connector)
	case "CreateConnector":
		response, err = client.CreateConnector(create, true)
	case "UpdateConnector":
		response, err = client.UpdateConnector(create, true)
	case "DeleteConnector":
		response, err = client.DeleteConnector(connector, true)
	case "GetConnectorConfig":
		response, err = client.GetConnectorConfig(connector)
	case "GetConnectorStatus":
		response, err = client.GetConnectorStatus(connector)
	case "RestartConnector":
		response, err = client.RestartConnector(connector)
	case "PauseConnector":
		response, err = client.PauseConnector(connector, true)
	case "ResumeConnector":
		response, err = client.ResumeConnector(connector, true)
	case "GetAllTasks":
		response, err = client.GetAllTasks(connector)
	case "GetTaskStatus":
		response, err = client.GetTaskStatus(task)
	case "RestartTask":
		response, err = client.RestartTask(task)
	case "IsUpToDate":
		response, err = client.IsUpToDate(create.Name, create.Config)
	case "DeployConnector":
		err = client.DeployConnector(create)
	default:
		err = fmt.Errorf("no method %s", os.Args[2])
	}
	if err != nil {
		exit(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(response); err != nil {
		exit(err)
	}
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
