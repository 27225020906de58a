# The server of a model, which is mounted at /model.
#   python -m build --wheel
#   docker build --tag ode-transformer .
#   docker run --publish 8000:8000 --volume ./MODEL:/model:ro ode-transformer /model --packed
FROM python:3.11-slim
COPY constraints.txt dist/*.whl /tmp/
# The CPU's builds of torch, which are a fraction of the others' size.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint /tmp/constraints.txt "$(ls /tmp/*.whl | tail -1)[serve]" && rm /tmp/*.whl
RUN useradd --create-home server
USER server
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["ode-transformer", "serve", "--host", "0.0.0.0"]
CMD ["/model"]
