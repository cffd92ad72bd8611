// Calls one method of the package kafka-connect-client: node call.js FOLDER PORT CONNECTOR METHOD ARGUMENTS
// FOLDER contains the installed package; an empty CONNECTOR means a method of the cluster; ARGUMENTS is a JSON list.
// Prints the status and the body of the response as JSON.
const [folder, port, connector, method, args] = process.argv.slice(2);
const { KafkaConnectClient } = require(`${folder}/node_modules/kafka-connect-client`);

async function main() {
  const cluster = new KafkaConnectClient({ host: "127.0.0.1", port: Number(port) });
  const target = connector === "" ? cluster : cluster.connector(connector);
  try {
    const { status, data } = await target[method](...JSON.parse(args));
    console.log(JSON.stringify({ status, data }));
  } catch (error) {
    if (error.response === undefined) throw error;
    console.log(JSON.stringify({ status: error.response.status, data: error.response.data }));
  }
}

main();
