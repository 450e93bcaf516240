"""The bytes of Kafka's protocol, without input or output: values to frames and back."""

if __name__ == "wire":
    raise ImportError("import metaquorum.wire: this folder is a part of the package metaquorum")
